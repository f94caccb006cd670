# precision: fp32
# second: batch=1, heads=2, length=6
import torch
import torch.nn as nn

batch, heads, length = 2, 3, 9
features = 16


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        steps = torch.arange(0, features, 2) / features
        self.register_buffer("frequencies", 10000.0**-steps, persistent=False)

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[-2], device=x.device), self.frequencies)
        first, second = x.chunk(2, dim=-1)
        sin, cos = angles.sin(), angles.cos()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def get_inputs():
    return [torch.randn(batch, heads, length, features)]


def get_init_inputs():
    return [features]
