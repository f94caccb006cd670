# task: matmul
# backend: triton
# why: one program for each row of the result, products summed without tl.dot
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, n, k, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for start in range(0, k, K):
        p = start + tl.arange(0, K)
        a = tl.load(a_ptr + row * k + p, mask=p < k, other=0.0)
        b = tl.load(b_ptr + p[:, None] * n + j[None, :], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        total += tl.sum(a[:, None] * b, axis=0)
    tl.store(c_ptr + row * n + j, total, mask=j < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = a.new_empty(m, n)
        matmul_kernel[(m,)](a, b, c, n, k, N=triton.next_power_of_2(n), K=16)
        return c
