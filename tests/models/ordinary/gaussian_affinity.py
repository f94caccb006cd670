import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, gamma=0.5):
        super().__init__()
        self.gamma = gamma

    def forward(self, a, b):
        diff = a - b
        return torch.exp(-self.gamma * diff * diff)


def get_inputs():
    return [torch.rand(1000), torch.rand(1000)]


def get_init_inputs():
    return []
