# task: split_scale
# backend: triton
# why: the three outputs are slices of one tensor, which the kernel fills as a whole
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def split_kernel(x_ptr, out_ptr, n, third, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    part = (offsets // third) % 3
    x = tl.load(x_ptr + offsets, mask=mask)
    before = tl.load(x_ptr + offsets - third, mask=mask & (part == 1), other=0.0)
    y = tl.where(part == 0, x * 2, tl.where(part == 1, x + before, tl.where(x < 0, 0.0, x)))
    tl.store(out_ptr + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        third = x.shape[1] // 3
        split_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), third, BLOCK=128)
        return list(out.split(third, dim=1))
