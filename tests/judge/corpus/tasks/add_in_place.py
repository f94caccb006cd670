# precision: fp32
# second: rows=3, cols=45
import torch
import torch.nn as nn

rows, cols = 8, 64


class Model(nn.Module):
    """Writes to its first input and returns it: by contract, not by mistake."""

    def forward(self, x, y):
        return x.mul_(0.5).add_(y)


def get_inputs():
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs():
    return []
