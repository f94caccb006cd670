# precision: fp32
# second: batch=1, length=11
import torch
import torch.nn as nn

batch, length = 2, 30
channels = 5


class Model(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1)

    def forward(self, x):
        return self.conv(x)[..., : x.shape[-1]]


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels, 4]
