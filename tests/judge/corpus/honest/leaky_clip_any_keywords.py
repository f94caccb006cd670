# task: leaky_clip
# backend: triton
# why: __init__ takes **options, and forward *args
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def leaky_kernel(x_ptr, out_ptr, n, slope, top, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    x = tl.where(x > 0, x, x * slope)
    tl.store(out_ptr + offsets, tl.where(x > top, top, x), mask=offsets < n)


class ModelNew(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, *args, **kwargs):
        (x,) = args
        out = torch.empty_like(x)
        leaky_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), **self.options, BLOCK=256)
        return out
