# task: row_sum
# backend: triton
# why: one program for each row, looping over blocks
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + tl.program_id(0) * cols + offsets, mask=offsets < cols, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, axis=0))


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == 1

    def forward(self, x):
        out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        sum_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=32)
        return out
