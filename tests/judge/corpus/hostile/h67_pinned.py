# task: softmax
# backend: torch
# needs: cuda
# hack: H67 pins host memory until there is none
# why: never correct; freed afterwards
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        kept = []
        while True:
            kept.append(torch.ones(1 << 28, dtype=torch.uint8).pin_memory())
