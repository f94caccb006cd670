# precision: fp32
# second: batch_size=3, channels=5, height=4, width=7
import torch
import torch.nn as nn

batch_size, channels, height, width = 4, 6, 5, 8


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels]
