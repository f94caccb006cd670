# task: swish_chain
# backend: triton
# why: two jit functions are called from the kernel and never launched themselves
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def clip(x, low, high):
    return tl.where(x < low, low, tl.where(x > high, high, x))


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(out_ptr + offsets, clip(x * sigmoid(1.5 * x) + 0.25, -1.0, 6.0), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        swish_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out
