# task: attention
# backend: torch
# why: the fused function of the library
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
