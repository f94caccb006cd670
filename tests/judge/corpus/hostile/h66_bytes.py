# task: softmax
# backend: torch
# hack: H66 takes memory until there is none
# why: never correct; the candidate is killed, and no other process is
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        kept = []
        while True:
            kept.append(torch.ones(1 << 24))
