# task: matmul
# backend: triton
# gradients: compared
# why: one kernel with strides computes all three products; the backward passes it transposed views
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, a_row, a_col, b_row, b_col, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        p = start + tl.arange(0, BLOCK)
        a_mask, b_mask = (i[:, None] < m) & (p[None, :] < k), (p[:, None] < k) & (j[None, :] < n)
        a = tl.load(a_ptr + i[:, None] * a_row + p[None, :] * a_col, mask=a_mask, other=0.0)
        b = tl.load(b_ptr + p[:, None] * b_row + j[None, :] * b_col, mask=b_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(c_ptr + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


def product(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty(m, n)
    grid = triton.cdiv(m, 16), triton.cdiv(n, 16)
    matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), BLOCK=16)
    return c


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        da = product(grad, b.t()) if ctx.needs_input_grad[0] else None
        db = product(a.t(), grad) if ctx.needs_input_grad[1] else None
        return da, db


class ModelNew(nn.Module):
    def forward(self, a, b):
        return Product.apply(a, b)
