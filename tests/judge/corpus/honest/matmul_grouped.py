# task: matmul
# backend: triton
# why: one-dimensional grid whose programs are reordered in groups for L2; accumulates in tl.dot
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, am, ak, bk, bn, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, G: tl.constexpr
):
    tiles_m, tiles_n = tl.cdiv(m, M), tl.cdiv(n, N)
    group = tl.program_id(0) // (G * tiles_n)
    first = group * G
    size = tl.minimum(tiles_m - first, G)
    inside = tl.program_id(0) % (G * tiles_n)
    i = (first + inside % size) * M + tl.arange(0, M)
    j = (inside // size) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, tl.cdiv(k, K)):
        p = start * K + tl.arange(0, K)
        a = tl.load(a_ptr + i[:, None] * am + p[None, :] * ak, mask=(i[:, None] < m) & (p[None, :] < k), other=0.0)
        b = tl.load(b_ptr + p[:, None] * bk + j[None, :] * bn, mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(c_ptr + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = a.new_empty(m, n)
        grid = (triton.cdiv(m, 16) * triton.cdiv(n, 16),)
        matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), M=16, N=16, K=32, G=2)
        return c
