# task: softmax
# backend: triton
# why: two rows in a program
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows_kernel(x_ptr, out_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    mask = (r < rows) & (c < cols)
    x = tl.load(x_ptr + r * cols + c, mask=mask, other=-1e38)
    e = tl.where(mask, tl.exp(x - tl.max(x, axis=1)[:, None]), 0.0)
    tl.store(out_ptr + r * cols + c, e / tl.sum(e, axis=1)[:, None], mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        rows, cols = x.shape
        rows_kernel[(triton.cdiv(rows, 2),)](x, out, rows, cols, ROWS=2, BLOCK=triton.next_power_of_2(cols))
        return out
