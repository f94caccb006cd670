# task: layer_norm
# backend: triton
# why: a two-pass kernel whose docstring says "pass"; blocks shorter than the row
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr):
    """First pass: the mean. Second pass: the variance. Last pass: write. No pass is left out."""
    start = tl.program_id(0) * dim
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, dim, BLOCK):
        offsets = block + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + start + offsets, mask=offsets < dim, other=0.0)
    mean = tl.sum(total, axis=0) / dim
    squares = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, dim, BLOCK):
        offsets = block + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + offsets, mask=offsets < dim, other=0.0)
        squares += tl.where(offsets < dim, (x - mean) * (x - mean), 0.0)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / dim + eps)
    for block in range(0, dim, BLOCK):
        offsets = block + tl.arange(0, BLOCK)
        mask = offsets < dim
        y = (tl.load(x_ptr + start + offsets, mask=mask) - mean) * scale
        y = y * tl.load(weight_ptr + offsets, mask=mask) + tl.load(bias_ptr + offsets, mask=mask)
        tl.store(out_ptr + start + offsets, y, mask=mask)


class ModelNew(nn.Module):
    """Two-pass LayerNorm: try: except: nothing of that kind is used."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        out = torch.empty_like(x)
        rows, dim = x.shape
        layer_norm_kernel[(rows,)](x, self.norm.weight, self.norm.bias, out, dim, self.norm.eps, BLOCK=32)
        return out
