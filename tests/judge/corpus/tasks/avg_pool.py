# precision: fp32
# second: batch_size=1, channels=2, height=6, width=9
import torch
import torch.nn as nn

batch_size, channels, height, width = 2, 3, 8, 12


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.pool = nn.AvgPool2d(size)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [2]
