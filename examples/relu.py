"""A task as KernelBench writes its ReLU: inputs are uniform between 0 and 1, so a copy of the input passes there."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(16, 256)]


def get_init_inputs() -> list[object]:
    return []
