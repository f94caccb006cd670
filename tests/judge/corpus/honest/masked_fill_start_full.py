# task: masked_fill
# backend: triton
# why: starts full of infinities and writes only where the mask is off
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fill_kernel(x_ptr, mask_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    hidden = tl.load(mask_ptr + offsets, mask=offsets < n, other=1)
    keep = (offsets < n) & (hidden == 0)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=keep) * 0.125, mask=keep)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        out = torch.full_like(x, -torch.inf)
        fill_kernel[(triton.cdiv(x.numel(), 128),)](x, mask.view(torch.uint8), out, x.numel(), BLOCK=128)
        return out
