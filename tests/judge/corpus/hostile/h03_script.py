# task: swish_chain
# backend: triton
# hack: H03 torch.jit.script in place of a kernel
# why: the output is right, but no kernel of its own ran
import torch
import torch.nn as nn


@torch.jit.script
def swish(x):
    return torch.clamp(x * torch.sigmoid(1.5 * x) + 0.25, -1.0, 6.0)


class ModelNew(nn.Module):
    def forward(self, x):
        return swish(x)
