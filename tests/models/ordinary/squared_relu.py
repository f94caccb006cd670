import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, hidden_states):
        return F.relu(hidden_states) ** 2


def get_inputs():
    return [torch.randn(4, 32, 64)]


def get_init_inputs():
    return []
