# precision: fp32
# second: batch_size=5, dim=20, hidden=60
import torch
import torch.nn as nn

batch_size, dim, hidden = 8, 32, 80


class Model(nn.Module):
    """Weights of several layers, under nested names."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        return x + self.layers(self.norm(x))


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return [dim, hidden]
