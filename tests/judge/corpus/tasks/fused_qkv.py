# precision: fp32
# second: rows=5
import torch
import torch.nn as nn

rows, dim = 8, 16


class Model(nn.Module):
    """Three projections, which an implementation may join."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x):
        return self.q(x) * self.k(x) + self.v(x)


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim]
