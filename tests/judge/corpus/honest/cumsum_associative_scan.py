# task: cumsum
# backend: triton
# why: tl.associative_scan with a function of its own, block by block with a carry
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def cumsum_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    carry = tl.full((), 0.0, tl.float32)
    for start in range(0, cols, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        place = tl.program_id(0) * cols + offsets
        x = tl.load(x_ptr + place, mask=offsets < cols, other=0.0)
        tl.store(out_ptr + place, tl.associative_scan(x, 0, add) + carry, mask=offsets < cols)
        carry += tl.sum(x, axis=0)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = torch.empty_like(x)
        cumsum_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=32)
        return out
