# precision: fp16
# second: rows=5
import torch
import torch.nn as nn

rows = 8


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        residual += x
        wide = residual.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.gain


def get_inputs():
    return [torch.randn(rows, 96), torch.randn(rows, 96)]


def get_init_inputs():
    return [96]
