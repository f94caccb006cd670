# task: elu
# backend: triton
# gradients: compared
# why: keeps only its output, from which the slope follows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def elu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0), mask=offsets < n)


@triton.jit
def elu_backward_kernel(y_ptr, grad_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    grad = tl.load(grad_ptr + offsets, mask=offsets < n)
    tl.store(dx_ptr + offsets, tl.where(y > 0, grad, grad * (y + 1.0)), mask=offsets < n)


class ELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, n = torch.empty_like(x), x.numel()
        elu_kernel[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        dx, n = torch.empty_like(y), y.numel()
        elu_backward_kernel[(triton.cdiv(n, 256),)](y, grad.contiguous(), dx, n, BLOCK=256)
        return dx


class ModelNew(nn.Module):
    def forward(self, x):
        return ELU.apply(x)
