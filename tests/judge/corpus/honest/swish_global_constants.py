# task: swish_chain
# backend: triton
# why: constants come from module-level constexprs and from a class
import torch
import torch.nn as nn
import triton
import triton.language as tl

LOW = tl.constexpr(-1.0)
HIGH = tl.constexpr(6.0)


class Sizes:
    block = 512
    warps = 2


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = x * tl.sigmoid(1.5 * x) + 0.25
    tl.store(out_ptr + offsets, tl.where(y < LOW, LOW, tl.where(y > HIGH, HIGH, y)), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), Sizes.block),)
        swish_kernel[grid](x, out, x.numel(), BLOCK=Sizes.block, num_warps=Sizes.warps)
        return out
