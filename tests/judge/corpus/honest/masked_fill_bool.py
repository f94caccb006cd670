# task: masked_fill
# backend: triton
# why: a boolean input, loaded as bytes; the output holds infinities
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fill_kernel(x_ptr, mask_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside) * 0.125
    hidden = tl.load(mask_ptr + offsets, mask=inside, other=0) != 0
    tl.store(out_ptr + offsets, tl.where(hidden, -float("inf"), x), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        out = torch.empty_like(x)
        fill_kernel[(triton.cdiv(x.numel(), 128),)](x, mask, out, x.numel(), BLOCK=128)
        return out
