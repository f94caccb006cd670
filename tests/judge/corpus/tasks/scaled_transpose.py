# precision: fp32
# second: batch_size=3, rows=7, cols=10
import torch
import torch.nn as nn

batch_size, rows, cols = 2, 12, 24


class Model(nn.Module):
    """The output is a view with other strides."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return (x * self.scale + 1.0).transpose(1, 2)


def get_inputs():
    return [torch.randn(batch_size, rows, cols)]


def get_init_inputs():
    return [0.7]
