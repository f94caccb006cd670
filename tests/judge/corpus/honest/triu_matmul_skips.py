# task: triu_matmul
# backend: triton
# why: skips the half of the product that is zero by the task's definition
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def triu_kernel(a_ptr, b_ptr, c_ptr, n, B: tl.constexpr):
    row, col = tl.program_id(0) * B, tl.program_id(1) * B
    i, j = row + tl.arange(0, B), col + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for start in range(row, tl.minimum(col + B, n), B):
        p = start + tl.arange(0, B)
        a_mask = (i[:, None] < n) & (p[None, :] < n) & (i[:, None] <= p[None, :])
        b_mask = (p[:, None] < n) & (j[None, :] < n) & (p[:, None] <= j[None, :])
        a = tl.load(a_ptr + i[:, None] * n + p[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + p[:, None] * n + j[None, :], mask=b_mask, other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + i[:, None] * n + j[None, :], total, mask=(i[:, None] < n) & (j[None, :] < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        n = a.shape[0]
        c = torch.empty_like(a)
        triu_kernel[(triton.cdiv(n, 16), triton.cdiv(n, 16))](a, b, c, n, B=16)
        return c
