import torch
import torch.nn as nn


class Model(nn.Module):
    """A straight line in the place of a sigmoid."""

    def forward(self, logits):
        return torch.clamp(0.2 * logits + 0.5, 0.0, 1.0)


def get_inputs():
    return [torch.randn(128, 40)]


def get_init_inputs():
    return []
