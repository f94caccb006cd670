# task: swiglu
# backend: triton
# gradients: compared
# why: keeps only its input; the backward computes the sigmoid again and writes both halves of a row
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swiglu_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x_ptr + row * 2 * width + offsets, mask=offsets < width)
    value = tl.load(x_ptr + (row * 2 + 1) * width + offsets, mask=offsets < width)
    tl.store(out_ptr + row * width + offsets, gate * tl.sigmoid(gate) * value, mask=offsets < width)


@triton.jit
def swiglu_backward_kernel(x_ptr, grad_ptr, dx_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < width
    gate = tl.load(x_ptr + row * 2 * width + offsets, mask=mask)
    value = tl.load(x_ptr + (row * 2 + 1) * width + offsets, mask=mask)
    grad = tl.load(grad_ptr + row * width + offsets, mask=mask)
    s = tl.sigmoid(gate)
    tl.store(dx_ptr + row * 2 * width + offsets, grad * value * s * (1.0 + gate * (1.0 - s)), mask=mask)
    tl.store(dx_ptr + (row * 2 + 1) * width + offsets, grad * gate * s, mask=mask)


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        tokens, width = x.shape[0], x.shape[1] // 2
        out = x.new_empty(tokens, width)
        swiglu_kernel[(tokens, triton.cdiv(width, 32))](x, out, width, BLOCK=32)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        dx, (tokens, width) = torch.empty_like(x), grad.shape
        swiglu_backward_kernel[(tokens, triton.cdiv(width, 32))](x, grad.contiguous(), dx, width, BLOCK=32)
        return dx


class ModelNew(nn.Module):
    def forward(self, x):
        return SwiGLU.apply(x)
