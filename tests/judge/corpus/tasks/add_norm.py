# precision: fp32
# second: tokens=5
import torch
import torch.nn as nn

tokens = 9
dim = 40


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x, residual):
        total = x + residual
        scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
        return total * scale * self.weight, total


def get_inputs():
    return [torch.randn(tokens, dim), torch.randn(tokens, dim)]


def get_init_inputs():
    return [dim]
