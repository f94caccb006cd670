# task: layer_norm
# backend: triton
# gradients: compared
# why: declares the bias before the weight, and has a kernel for rows and one for columns of the gradient
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def forward_kernel(x_ptr, w_ptr, b_ptr, y_ptr, normal_ptr, scale_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask, place = offsets < cols, tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / cols, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / cols + 1e-5)
    normal = centred * scale
    tl.store(normal_ptr + place, normal, mask=mask)
    tl.store(scale_ptr + tl.program_id(0), scale)
    y = normal * tl.load(w_ptr + offsets, mask=mask) + tl.load(b_ptr + offsets, mask=mask)
    tl.store(y_ptr + place, y, mask=mask)


@triton.jit
def rows_kernel(normal_ptr, scale_ptr, w_ptr, grad_ptr, dx_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask, place = offsets < cols, tl.program_id(0) * cols + offsets
    normal = tl.load(normal_ptr + place, mask=mask, other=0.0)
    grad = tl.load(grad_ptr + place, mask=mask, other=0.0) * tl.load(w_ptr + offsets, mask=mask, other=0.0)
    dx = grad - tl.sum(grad, axis=0) / cols - normal * tl.sum(grad * normal, axis=0) / cols
    tl.store(dx_ptr + place, dx * tl.load(scale_ptr + tl.program_id(0)), mask=mask)


@triton.jit
def columns_kernel(normal_ptr, grad_ptr, dw_ptr, db_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    j = tl.program_id(0) * C + tl.arange(0, C)
    dw, db = tl.zeros((R, C), tl.float32), tl.zeros((R, C), tl.float32)
    for start in range(0, rows, R):
        i = start + tl.arange(0, R)
        mask = (i[:, None] < rows) & (j[None, :] < cols)
        grad = tl.load(grad_ptr + i[:, None] * cols + j[None, :], mask=mask, other=0.0)
        dw += grad * tl.load(normal_ptr + i[:, None] * cols + j[None, :], mask=mask, other=0.0)
        db += grad
    tl.store(dw_ptr + j, tl.sum(dw, axis=0), mask=j < cols)
    tl.store(db_ptr + j, tl.sum(db, axis=0), mask=j < cols)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        (rows, cols), y, normal, scale = x.shape, torch.empty_like(x), torch.empty_like(x), x.new_empty(x.shape[0])
        forward_kernel[(rows,)](x, w, b, y, normal, scale, cols, BLOCK=triton.next_power_of_2(cols))
        ctx.save_for_backward(normal, scale, w)
        return y

    @staticmethod
    def backward(ctx, grad):
        (normal, scale, w), grad = ctx.saved_tensors, grad.contiguous()
        (rows, cols), dx, dw, db = grad.shape, torch.empty_like(grad), torch.empty_like(w), torch.empty_like(w)
        rows_kernel[(rows,)](normal, scale, w, grad, dx, cols, BLOCK=triton.next_power_of_2(cols))
        columns_kernel[(triton.cdiv(cols, 32),)](normal, grad, dw, db, rows, cols, R=4, C=32)
        return dx, dw, db


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias, self.weight = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return LayerNorm.apply(x, self.weight, self.bias)
