# task: swish_chain
# backend: triton
# why: forward and backward in an autograd.Function
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
    y = tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y))
    tl.store(out_ptr + offsets, y, mask=mask)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        n = x.numel()
        swish_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.5 * x)
        y = x * s + 0.25
        return grad * (s + 1.5 * x * s * (1 - s)) * ((y >= -1) & (y <= 6))


class ModelNew(nn.Module):
    def forward(self, x):
        return Swish.apply(x)
