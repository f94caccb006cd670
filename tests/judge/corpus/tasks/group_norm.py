# precision: fp32
# second: batch=2, size=4
import torch
import torch.nn as nn

batch, size = 3, 6
channels = 12


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [4, channels]
