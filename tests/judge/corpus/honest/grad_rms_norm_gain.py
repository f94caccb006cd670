# task: rms_norm
# backend: triton
# gradients: compared
# why: its parameter has another name, and every row adds to the parameter's gradient with atomics
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def forward_kernel(x_ptr, gain_ptr, y_ptr, scale_ptr, dim, eps, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offsets < dim
    x = tl.load(x_ptr + row * dim + offsets, mask=mask, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / dim + eps)
    tl.store(y_ptr + row * dim + offsets, x * scale * tl.load(gain_ptr + offsets, mask=mask), mask=mask)
    tl.store(scale_ptr + row, scale)


@triton.jit
def backward_kernel(x_ptr, gain_ptr, scale_ptr, grad_ptr, dx_ptr, dgain_ptr, dim, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offsets < dim
    scale = tl.load(scale_ptr + row)
    normal = tl.load(x_ptr + row * dim + offsets, mask=mask, other=0.0) * scale
    grad = tl.load(grad_ptr + row * dim + offsets, mask=mask, other=0.0)
    scaled = grad * tl.load(gain_ptr + offsets, mask=mask, other=0.0)
    dx = (scaled - normal * tl.sum(scaled * normal, axis=0) / dim) * scale
    tl.store(dx_ptr + row * dim + offsets, dx, mask=mask)
    tl.atomic_add(dgain_ptr + offsets, grad * normal, mask=mask)


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, eps):
        dim = x.shape[-1]
        y, scale = torch.empty_like(x), x.new_empty(x.numel() // dim)
        forward_kernel[(len(scale),)](x, gain, y, scale, dim, eps, BLOCK=triton.next_power_of_2(dim))
        ctx.save_for_backward(x, gain, scale)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, gain, scale = ctx.saved_tensors
        dx, dgain, dim = torch.empty_like(x), torch.zeros_like(gain), x.shape[-1]
        block = triton.next_power_of_2(dim)
        backward_kernel[(len(scale),)](x, gain, scale, grad.contiguous(), dx, dgain, dim, BLOCK=block)
        return dx, dgain, None


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return RMSNorm.apply(x, self.gain, self.eps)
