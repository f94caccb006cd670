# task: linear_relu
# backend: triton
# gradients: compared
# allow: library_matmul
# why: a fused kernel forward; backward a kernel masks the gradient and adds up the bias's, and torch computes products
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(x_ptr, w_ptr, bias_ptr, y_ptr, rows, outs, ins, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    y = tl.zeros((M, N), tl.float32) + tl.load(bias_ptr + j, mask=j < outs, other=0.0)[None, :]
    for start in range(0, ins, K):
        p = start + tl.arange(0, K)
        x = tl.load(x_ptr + i[:, None] * ins + p[None, :], mask=(i[:, None] < rows) & (p[None, :] < ins), other=0.0)
        w = tl.load(w_ptr + j[None, :] * ins + p[:, None], mask=(j[None, :] < outs) & (p[:, None] < ins), other=0.0)
        y += tl.dot(x, w, input_precision="ieee")
    y = tl.where(y < 0, 0.0, y)
    tl.store(y_ptr + i[:, None] * outs + j[None, :], y, mask=(i[:, None] < rows) & (j[None, :] < outs))


@triton.jit
def masking_kernel(y_ptr, grad_ptr, masked_ptr, dbias_ptr, rows, outs, M: tl.constexpr, N: tl.constexpr):
    j = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for start in range(0, rows, M):
        i = start + tl.arange(0, M)
        place, inside = i[:, None] * outs + j[None, :], (i[:, None] < rows) & (j[None, :] < outs)
        grad = tl.load(grad_ptr + place, mask=inside, other=0.0)
        grad = tl.where(tl.load(y_ptr + place, mask=inside, other=0.0) > 0, grad, 0.0)
        tl.store(masked_ptr + place, grad, mask=inside)
        total += tl.sum(grad, axis=0)
    tl.store(dbias_ptr + j, total, mask=j < outs)


class LinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        (rows, ins), outs = x.shape, weight.shape[0]
        y = x.new_empty(rows, outs)
        grid = triton.cdiv(rows, 16), triton.cdiv(outs, 16)
        linear_kernel[grid](x, weight, bias, y, rows, outs, ins, M=16, N=16, K=16)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, y = ctx.saved_tensors
        (rows, outs), masked, dbias = y.shape, torch.empty_like(y), y.new_empty(y.shape[1])
        masking_kernel[(triton.cdiv(outs, 16),)](y, grad.contiguous(), masked, dbias, rows, outs, M=16, N=16)
        return masked @ weight, masked.t() @ x, dbias


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return LinearReLU.apply(x, self.linear.weight, self.linear.bias)
