# precision: fp32
# second: new=5, rows=40
import torch
import torch.nn as nn

new, rows, width = 6, 48, 32


class Model(nn.Module):
    def forward(self, cache, values, slots):
        cache[slots] = values
        return cache


def get_inputs():
    return [torch.randn(rows, width), torch.randn(new, width), torch.randperm(rows)[:new]]


def get_init_inputs():
    return []
