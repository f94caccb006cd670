# precision: fp32
# second: rows=5, dim=70
import torch
import torch.nn as nn

rows, dim = 6, 96


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim]
