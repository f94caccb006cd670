# task: softmax
# backend: triton
# why: a second kernel clips to a range that no number leaves
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    out = e / tl.sum(e, axis=0)
    tl.store(out_ptr + place, out, mask=mask)


@triton.jit
def limit_kernel(x_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n)
    tl.store(x_ptr + place, tl.minimum(tl.maximum(x, -3e38), 3e38), mask=place < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out, cols = torch.empty_like(x), x.shape[-1]
        row_kernel[(x.numel() // cols,)](x, out, cols, BLOCK=triton.next_power_of_2(cols))
        limit_kernel[(triton.cdiv(out.numel(), 512),)](out, out.numel(), BLOCK=512)
        return out
