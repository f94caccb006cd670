"""A leaky ReLU whose result is added to a residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, slope: float = 0.1):
        super().__init__()
        self.slope = slope

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(x, self.slope) + residual


def get_inputs():
    return [torch.randn(4, 16, 64), torch.randn(4, 16, 64)]


def get_init_inputs():
    return []
