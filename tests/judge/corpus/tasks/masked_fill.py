# precision: fp32
# second: rows=7, cols=30
import torch
import torch.nn as nn

rows, cols = 8, 48


class Model(nn.Module):
    """Boolean input, and infinities out."""

    def forward(self, x, mask):
        return (x * 0.125).masked_fill(mask, float("-inf"))


def get_inputs():
    return [torch.randn(rows, cols), torch.rand(rows, cols) < 0.3]


def get_init_inputs():
    return []
