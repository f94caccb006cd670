# precision: fp32
# second: rows=5
import torch
import torch.nn as nn

rows = 8


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("order", torch.randperm(width))
        self.gain = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x[:, self.order] * self.gain


def get_inputs():
    return [torch.randn(rows, 64)]


def get_init_inputs():
    return [64]
