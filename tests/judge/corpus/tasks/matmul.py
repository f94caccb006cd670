# precision: fp32
# second: m=17, k=33, n=20
import torch
import torch.nn as nn

m, k, n = 32, 48, 32


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(m, k), torch.randn(k, n)]


def get_init_inputs():
    return []
