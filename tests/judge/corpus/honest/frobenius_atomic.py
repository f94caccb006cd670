# task: frobenius
# backend: triton
# why: the sum is atomic, and torch takes the square root of one number
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def squares_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(x * x, axis=0))


@triton.jit
def scale_kernel(x_ptr, norm_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x / tl.load(norm_ptr), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        total, out, grid = x.new_zeros(1), torch.empty_like(x), (triton.cdiv(x.numel(), 256),)
        squares_kernel[grid](x, total, x.numel(), BLOCK=256)
        scale_kernel[grid](x, total.sqrt(), out, x.numel(), BLOCK=256)
        return out
