# task: layer_norm
# backend: triton
# gradients: compared
# why: the kernel of the input's gradient also adds up those of weight and bias over four rows; torch adds these sums
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def forward_kernel(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, scale_ptr, cols, eps, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * cols + offsets, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(mask, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / cols + eps)
    y = centred * scale * tl.load(w_ptr + offsets, mask=mask) + tl.load(b_ptr + offsets, mask=mask)
    tl.store(y_ptr + row * cols + offsets, y, mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(scale_ptr + row, scale)


@triton.jit
def backward_kernel(
    x_ptr, w_ptr, grad_ptr, mean_ptr, scale_ptr, dx_ptr, dw_ptr, db_ptr, rows, cols, BLOCK: tl.constexpr
):
    part, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    w = tl.load(w_ptr + offsets, mask=offsets < cols, other=0.0)
    dw, db = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(part * 4, min(part * 4 + 4, rows)):
        place = row * cols + offsets
        x = tl.load(x_ptr + place, mask=offsets < cols, other=0.0)
        grad = tl.load(grad_ptr + place, mask=offsets < cols, other=0.0)
        scale = tl.load(scale_ptr + row)
        normal = tl.where(offsets < cols, (x - tl.load(mean_ptr + row)) * scale, 0.0)
        along = tl.sum(w * grad * normal, axis=0) / cols
        dx = (w * grad - tl.sum(w * grad, axis=0) / cols - normal * along) * scale
        tl.store(dx_ptr + place, dx, mask=offsets < cols)
        dw += grad * normal
        db += grad
    tl.store(dw_ptr + part * cols + offsets, dw, mask=offsets < cols)
    tl.store(db_ptr + part * cols + offsets, db, mask=offsets < cols)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, eps):
        y, (rows, cols) = torch.empty_like(x), x.shape
        mean, scale = x.new_empty(rows), x.new_empty(rows)
        forward_kernel[(rows,)](x, w, b, y, mean, scale, cols, eps, BLOCK=triton.next_power_of_2(cols))
        ctx.save_for_backward(x, w, mean, scale)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, w, mean, scale = ctx.saved_tensors
        rows, cols = x.shape
        parts, block = triton.cdiv(rows, 4), triton.next_power_of_2(cols)
        dx, sums = torch.empty_like(x), x.new_empty(2, parts, cols)
        backward_kernel[(parts,)](x, w, grad.contiguous(), mean, scale, dx, *sums, rows, cols, BLOCK=block)
        return dx, *sums.sum(1), None


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return LayerNorm.apply(x, self.norm.weight, self.norm.bias, self.norm.eps)
