# task: cumsum
# backend: triton
# why: tl.cumsum over a whole row
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cumsum_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=offsets < cols, other=0.0)
    tl.store(out_ptr + place, tl.cumsum(x, axis=0), mask=offsets < cols)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = torch.empty_like(x)
        cumsum_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
