# task: matmul
# backend: triton
# why: partial sums added atomically to zeros: the order of the sum changes from run to run
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    j = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    p = tl.program_id(2) * K + tl.arange(0, K)
    a = tl.load(a_ptr + i * k + p[None, :], mask=(i < m) & (p[None, :] < k), other=0.0)
    b = tl.load(b_ptr + p[:, None] * n + j, mask=(p[:, None] < k) & (j < n), other=0.0)
    part = tl.dot(a, b, input_precision="ieee")
    tl.atomic_add(c_ptr + i * n + j, part, mask=(i < m) & (j < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.zeros(m, n, device=a.device)
        grid = (triton.cdiv(m, 32), triton.cdiv(n, 32), triton.cdiv(k, 16))
        matmul_kernel[grid](a, b, c, m, n, k, M=32, N=32, K=16)
        return c
