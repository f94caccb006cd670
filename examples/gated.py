"""One tensor decides how much of another one passes.

    kernel-coder refine examples/gated.py --turns 1 --parallel 8

writes a Triton kernel for it with the packaged model, on a CPU in less than a minute.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Gated product."""

    def forward(self, x, gate):
        return torch.tanh(x) * torch.sigmoid(gate)


def get_inputs():
    return [torch.randn(32, 128), torch.randn(32, 128)]


def get_init_inputs():
    return []
