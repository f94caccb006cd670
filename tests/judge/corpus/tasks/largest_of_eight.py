# precision: fp32
# second: rows=5
import torch
import torch.nn as nn

rows, groups = 6, 7


class Model(nn.Module):
    def forward(self, x):
        parts = x.view(x.shape[0], -1, 8)
        places = parts.abs().argmax(dim=-1, keepdim=True)
        return torch.zeros_like(parts).scatter_(-1, places, parts.gather(-1, places)).view_as(x)


def get_inputs():
    return [torch.randn(rows, groups * 8)]


def get_init_inputs():
    return []
