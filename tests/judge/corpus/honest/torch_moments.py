# task: moments
# backend: torch
# why: a named tuple is a tuple
from typing import NamedTuple

import torch
import torch.nn as nn


class Moments(NamedTuple):
    mean: torch.Tensor
    variance: torch.Tensor


class ModelNew(nn.Module):
    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=1, correction=0)
        return Moments(mean, variance)
