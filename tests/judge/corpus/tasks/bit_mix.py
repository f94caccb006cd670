# precision: fp32
# second: rows=5, cols=41
import torch
import torch.nn as nn

rows, cols = 8, 64


class Model(nn.Module):
    """Integers in and out: every bit counts."""

    def forward(self, x, y):
        return (x ^ (y >> 3)) * 5 + (x & 255)


def get_inputs():
    return [torch.randint(-1000, 1000, (rows, cols)), torch.randint(-1000, 1000, (rows, cols))]


def get_init_inputs():
    return []
