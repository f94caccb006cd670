import torch
import torch.nn as nn


class Model(nn.Module):
    """Mixes an old and a new state, as a highway layer or a GRU does."""

    def forward(self, old, new, gate_logits):
        gate = torch.sigmoid(gate_logits)
        return gate * new + (1 - gate) * old


def get_inputs():
    return [torch.randn(32, 128), torch.randn(32, 128), torch.randn(32, 128)]


def get_init_inputs():
    return []
