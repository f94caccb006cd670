# task: moments
# backend: torch
# why: the library returns both in the other order, and a slice turns them round
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.var_mean(x, dim=1, correction=0)[::-1]
