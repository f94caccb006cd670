# task: softmax
# backend: triton
# why: a two-dimensional block of rows, the last of them partly outside
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, rows, cols, M: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    mask = (i < rows) & (j < cols)
    x = tl.load(x_ptr + i * cols + j, mask=mask, other=-float("inf"))
    top = tl.max(x, axis=1)
    e = tl.exp(x - tl.where(top == -float("inf"), 0.0, top)[:, None])
    tl.store(out_ptr + i * cols + j, e / tl.sum(e, axis=1)[:, None], mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty_like(x)
        softmax_kernel[(triton.cdiv(rows, 4),)](x, out, rows, cols, M=4, N=triton.next_power_of_2(cols))
        return out
