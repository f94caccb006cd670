# task: row_sum
# backend: triton
# why: blocks of a row add their sums atomically, in any order
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    tl.atomic_add(out_ptr + row, tl.sum(x, axis=0))


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = torch.zeros(x.shape[0], device=x.device)
        sum_kernel[(x.shape[0], triton.cdiv(x.shape[1], 32))](x, out, x.shape[1], BLOCK=32)
        return out
