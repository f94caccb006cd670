# task: elu
# backend: triton
# gradients: compared
# why: its backward writes over the incoming gradient, as fused norms do to save memory
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def elu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n)
    tl.store(y_ptr + place, tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0), mask=place < n)


@triton.jit
def slope_kernel(x_ptr, grad_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n)
    grad = tl.load(grad_ptr + place, mask=place < n)
    tl.store(grad_ptr + place, tl.where(x > 0, grad, grad * tl.exp(tl.minimum(x, 0.0))), mask=place < n)


class ELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        elu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,), grad = ctx.saved_tensors, grad.contiguous()
        slope_kernel[(triton.cdiv(x.numel(), 256),)](x, grad, x.numel(), BLOCK=256)
        return grad


class ModelNew(nn.Module):
    def forward(self, x):
        return ELU.apply(x)
