# precision: fp32
# second: tokens=3, width=20
import torch
import torch.nn as nn
import torch.nn.functional as F

tokens, width = 7, 48


class Model(nn.Module):
    def forward(self, x):
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


def get_inputs():
    return [torch.randn(tokens, 2 * width)]


def get_init_inputs():
    return []
