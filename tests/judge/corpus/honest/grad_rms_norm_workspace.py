# task: rms_norm
# backend: triton
# gradients: compared
# why: a buffer that the reference does not have holds what three programs have added up for the weight's gradient
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def forward_kernel(x_ptr, w_ptr, y_ptr, dim, eps, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask, place = offsets < dim, tl.program_id(0) * dim + offsets
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / dim + eps)
    tl.store(y_ptr + place, x * scale * tl.load(w_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def backward_kernel(x_ptr, w_ptr, grad_ptr, dx_ptr, parts_ptr, rows, dim, eps, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + offsets, mask=offsets < dim, other=0.0)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * dim + offsets, mask=offsets < dim, other=0.0)
        grad = tl.load(grad_ptr + row * dim + offsets, mask=offsets < dim, other=0.0)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / dim + eps)
        normal = x * scale
        dx = (w * grad - normal * tl.sum(w * grad * normal, axis=0) / dim) * scale
        tl.store(dx_ptr + row * dim + offsets, dx, mask=offsets < dim)
        dw += grad * normal
    tl.store(parts_ptr + tl.program_id(0) * dim + offsets, dw, mask=offsets < dim)


@triton.jit
def total_kernel(parts_ptr, dw_ptr, parts, dim, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    dw = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        dw += tl.load(parts_ptr + part * dim + offsets, mask=offsets < dim, other=0.0)
    tl.store(dw_ptr + offsets, dw, mask=offsets < dim)


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, workspace, eps):
        y, dim = torch.empty_like(x), x.shape[-1]
        forward_kernel[(x.numel() // dim,)](x, w, y, dim, eps, BLOCK=triton.next_power_of_2(dim))
        ctx.save_for_backward(x, w)
        ctx.workspace, ctx.eps = workspace, eps
        return y

    @staticmethod
    def backward(ctx, grad):
        (x, w), (parts, dim), dx = ctx.saved_tensors, ctx.workspace.shape, grad.new_empty(grad.shape)
        block, dw, grad = triton.next_power_of_2(dim), torch.empty_like(w), grad.contiguous()
        backward_kernel[(parts,)](x, w, grad, dx, ctx.workspace, x.numel() // dim, dim, ctx.eps, BLOCK=block)
        total_kernel[(1,)](ctx.workspace, dw, parts, dim, BLOCK=block)
        return dx, dw, None, None


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps
        self.register_buffer("workspace", torch.empty(3, dim), persistent=False)

    def forward(self, x):
        return RMSNorm.apply(x, self.weight, self.workspace, self.eps)
