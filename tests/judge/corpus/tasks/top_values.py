# precision: fp32
# second: rows=5, cols=70
import torch
import torch.nn as nn

rows, cols = 8, 96


class Model(nn.Module):
    """Values and places; places of equal numbers may be swapped."""

    def forward(self, x):
        return torch.topk(x, 1, dim=1)


def get_inputs():
    return [torch.randn(rows, cols)]


def get_init_inputs():
    return []
