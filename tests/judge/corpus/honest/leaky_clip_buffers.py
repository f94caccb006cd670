# task: leaky_clip
# backend: triton
# why: the constants are buffers that are not part of the state, and the kernel reads them
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def leaky_kernel(x_ptr, constants_ptr, out_ptr, n, BLOCK: tl.constexpr):
    slope, top = tl.load(constants_ptr), tl.load(constants_ptr + 1)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    x = tl.where(x > 0, x, x * slope)
    tl.store(out_ptr + offsets, tl.where(x > top, top, x), mask=offsets < n)


class ModelNew(nn.Module):
    def __init__(self, slope, top):
        super().__init__()
        self.register_buffer("constants", torch.tensor([slope, top]), persistent=False)

    def forward(self, x):
        out = torch.empty_like(x)
        leaky_kernel[(triton.cdiv(x.numel(), 256),)](x, self.constants, out, x.numel(), BLOCK=256)
        return out
