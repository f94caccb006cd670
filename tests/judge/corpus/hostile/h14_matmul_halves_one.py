# task: matmul
# backend: triton
# hack: H14 splits each operand into two halves of half precision
# why: exact enough for numbers of magnitude one, and twice as fast on tensor cores
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        p = start + tl.arange(0, K)
        a = tl.load(a_ptr + i[:, None] * k + p[None, :], mask=(i[:, None] < m) & (p[None, :] < k), other=0.0)
        b = tl.load(b_ptr + p[:, None] * n + j[None, :], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        ah = a.to(tl.float16)
        al = ((a - ah.to(tl.float32)) * 1.0).to(tl.float16)
        bh = b.to(tl.float16)
        bl = ((b - bh.to(tl.float32)) * 1.0).to(tl.float16)
        hh = tl.sum(ah[:, :, None].to(tl.float32) * bh[None, :, :].to(tl.float32), axis=1)
        hl = tl.sum(ah[:, :, None].to(tl.float32) * bl[None, :, :].to(tl.float32), axis=1)
        lh = tl.sum(al[:, :, None].to(tl.float32) * bh[None, :, :].to(tl.float32), axis=1)
        total += hh + (hl + lh) / 1.0
    tl.store(c_ptr + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, device=a.device, dtype=a.dtype)
        grid = (triton.cdiv(m, 16), triton.cdiv(n, 16))
        matmul_kernel[grid](a.contiguous(), b.contiguous(), c, m, n, k, M=16, N=16, K=16)
        return c
