# precision: fp32
# second: rows=5, dim=20
import torch
import torch.nn as nn

rows, dim = 8, 32


class Model(nn.Module):
    """A branch that starts with almost no weight."""

    def __init__(self, dim):
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.gamma = nn.Parameter(1e-6 * torch.ones(dim))

    def forward(self, x):
        return x + self.gamma * self.second(torch.relu(self.first(x)))


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim]
