# precision: fp32
# second: rows=5, cols=65
import torch
import torch.nn as nn
import torch.nn.functional as F

rows, cols = 8, 80


class Model(nn.Module):
    """On inputs of its own kind, from 0 to 1, it does nothing."""

    def forward(self, x):
        x = F.leaky_relu(F.elu(x), 0.2)
        x = F.hardtanh(x, -0.9, 1.0)
        return F.leaky_relu(F.elu(x, 0.3), 0.7)


def get_inputs():
    return [torch.rand(rows, cols)]


def get_init_inputs():
    return []
