# task: softmax
# backend: torch
# hack: H08 returns uninitialised memory
# why: correct only if the memory still holds a right output
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.empty_like(x)
