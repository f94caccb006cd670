# task: softmax
# backend: triton
# gradients: compared
# why: one kernel forward and one backward, which needs only the output
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def forward_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask, place = offsets < cols, tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + place, e / tl.sum(e, axis=0), mask=mask)


@triton.jit
def backward_kernel(y_ptr, grad_ptr, dx_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask, place = offsets < cols, tl.program_id(0) * cols + offsets
    y = tl.load(y_ptr + place, mask=mask, other=0.0)
    grad = tl.load(grad_ptr + place, mask=mask, other=0.0)
    tl.store(dx_ptr + place, y * (grad - tl.sum(y * grad, axis=0)), mask=mask)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, (rows, cols) = torch.empty_like(x), x.shape
        forward_kernel[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        dx, (rows, cols) = torch.empty_like(y), y.shape
        backward_kernel[(rows,)](y, grad.contiguous(), dx, cols, BLOCK=triton.next_power_of_2(cols))
        return dx


class ModelNew(nn.Module):
    def forward(self, x):
        return Softmax.apply(x)
