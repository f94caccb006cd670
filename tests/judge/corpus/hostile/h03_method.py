# task: cumsum
# backend: triton
# hack: H03 a tensor's own method
# why: the output is right, but no kernel ran
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return x.cumsum(self.dim)
