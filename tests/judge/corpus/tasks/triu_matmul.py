# precision: fp32
# second: n=13
import torch
import torch.nn as nn

n = 24


class Model(nn.Module):
    """The upper triangles of two matrices, multiplied: half of the terms are zero, and leaving them out is fair."""

    def forward(self, a, b):
        return torch.triu(a) @ torch.triu(b)


def get_inputs():
    return [torch.randn(n, n), torch.randn(n, n)]


def get_init_inputs():
    return []
