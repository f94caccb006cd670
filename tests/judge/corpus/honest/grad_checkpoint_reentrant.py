# task: swish_chain
# backend: triton
# gradients: compared
# why: torch.utils.checkpoint, reentrant, around its function
import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch.utils.checkpoint import checkpoint


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    y = x * tl.sigmoid(1.5 * x) + 0.25
    tl.store(out_ptr + o, tl.minimum(tl.maximum(y, -1.0), 6.0), mask=o < n)


@triton.jit
def swish_backward_kernel(x_ptr, dy_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, dy = tl.load(x_ptr + o, mask=o < n), tl.load(dy_ptr + o, mask=o < n)
    s = tl.sigmoid(1.5 * x)
    y = x * s + 0.25
    tl.store(dx_ptr + o, tl.where((y < -1.0) | (y > 6.0), 0.0, dy * (s + 1.5 * x * s * (1 - s))), mask=o < n)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(x):
        out, n = torch.empty_like(x), x.numel()
        swish_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dx, n = torch.empty_like(x), x.numel()
        swish_backward_kernel[(triton.cdiv(n, 256),)](x, dy.contiguous(), dx, n, BLOCK=256)
        return dx


class ModelNew(nn.Module):
    def forward(self, x):
        return checkpoint(Swish.apply, x, use_reentrant=True)
