# task: triu_matmul
# backend: triton
# why: starts from zeros and writes to the upper half only
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def triu_kernel(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for p in range(row, n):
        a = tl.load(a_ptr + row * n + p)
        total += a * tl.load(b_ptr + p * n + j, mask=(j < n) & (j >= p), other=0.0)
    tl.store(c_ptr + row * n + j, total, mask=(j < n) & (j >= row))


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.zeros_like(a)
        triu_kernel[(a.shape[0],)](a, b, c, a.shape[0], BLOCK=triton.next_power_of_2(a.shape[0]))
        return c
