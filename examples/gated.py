"""A gate: one tensor decides how much of another one passes."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Gated product."""

    def forward(self, x, gate):
        return x * torch.sigmoid(gate)


def get_inputs():
    return [torch.randn(32, 128), torch.randn(32, 128)]


def get_init_inputs():
    return []
