# task: row_sum
# backend: triton
# why: tl.reduce with a function of its own, over a block of rows
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def sum_kernel(x_ptr, out_ptr, rows, cols, M: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * cols + j[None, :], mask=(i[:, None] < rows) & (j[None, :] < cols), other=0.0)
    tl.store(out_ptr + i, tl.reduce(x, 1, add), mask=i < rows)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        rows, cols = x.shape
        out = x.new_empty(rows)
        sum_kernel[(triton.cdiv(rows, 8),)](x, out, rows, cols, M=8, N=triton.next_power_of_2(cols))
        return out
