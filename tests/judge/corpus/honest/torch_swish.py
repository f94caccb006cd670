# task: swish_chain
# backend: torch
# why: a plain rewrite with in-place operations on its own intermediate results
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return F.silu(1.5 * x).div_(1.5).add_(0.25).clamp_(-1.0, 6.0)
