"""A task with ReLU as in KernelBench: inputs are between 0 and 1, where a copy of the input is correct."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(16, 256)]


def get_init_inputs() -> list[object]:
    return []
