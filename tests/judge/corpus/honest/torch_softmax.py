# task: softmax
# backend: torch
# why: softmax by logsumexp; another order of roundings
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.exp(x - torch.logsumexp(x, dim=1, keepdim=True))
