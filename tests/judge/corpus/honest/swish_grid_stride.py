# task: swish_chain
# backend: triton
# why: a fixed number of programs, each looping over the blocks
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
        tl.store(out_ptr + offsets, tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y)), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        swish_kernel[(2,)](x, out, x.numel(), BLOCK=128)
        return out
