# task: swish_chain
# backend: triton
# why: one kernel is left over and never launched, but the result comes from the other
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def first_attempt_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
    y = tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y))
    tl.store(out_ptr + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        swish_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out
