# task: matmul
# backend: triton
# why: the kernel writes the transpose, and a view with swapped strides is returned
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, ct_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((N, M), tl.float32)
    for start in range(0, k, K):
        p = start + tl.arange(0, K)
        a = tl.load(a_ptr + i[:, None] * k + p[None, :], mask=(i[:, None] < m) & (p[None, :] < k), other=0.0)
        b = tl.load(b_ptr + p[:, None] * n + j[None, :], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        total += tl.dot(tl.trans(b), tl.trans(a), input_precision="ieee")
    tl.store(ct_ptr + j[:, None] * m + i[None, :], total, mask=(j[:, None] < n) & (i[None, :] < m))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        transposed = a.new_empty(n, m)
        grid = (triton.cdiv(m, 16), triton.cdiv(n, 16))
        matmul_kernel[grid](a, b, transposed, m, n, k, M=16, N=16, K=16)
        return transposed.t()
