# task: matmul
# backend: triton
# why: block pointers moved with tl.advance
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    a_block = tl.make_block_ptr(a_ptr, (m, k), (k, 1), (i, 0), (M, K), (1, 0))
    b_block = tl.make_block_ptr(b_ptr, (k, n), (n, 1), (0, j), (K, N), (1, 0))
    total = tl.zeros((M, N), tl.float32)
    for _ in range(0, k, K):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        total += tl.dot(a, b, input_precision="ieee")
        a_block = tl.advance(a_block, (0, K))
        b_block = tl.advance(b_block, (K, 0))
    c_block = tl.make_block_ptr(c_ptr, (m, n), (n, 1), (i, j), (M, N), (1, 0))
    tl.store(c_block, total, boundary_check=(0, 1))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = a.new_empty(m, n)
        matmul_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16))](a, b, c, m, n, k, M=16, N=16, K=16)
        return c
