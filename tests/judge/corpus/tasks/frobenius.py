# precision: fp32
# second: batch_size=1, rows=13, cols=50
import torch
import torch.nn as nn

batch_size, rows, cols = 2, 16, 64


class Model(nn.Module):
    """Small outputs: zeros are within 0.01 of half of them."""

    def forward(self, x):
        return x / torch.norm(x, p="fro")


def get_inputs():
    return [torch.rand(batch_size, rows, cols)]


def get_init_inputs():
    return []
