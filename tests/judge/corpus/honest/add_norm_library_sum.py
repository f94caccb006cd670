# task: add_norm
# backend: triton
# why: torch adds, and the kernel normalises several rows in a program
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows_kernel(x_ptr, weight_ptr, out_ptr, rows, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < dim)
    x = tl.load(x_ptr + row * dim + col, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / dim + 1e-6)
    weight = tl.load(weight_ptr + col, mask=col < dim, other=0.0)
    tl.store(out_ptr + row * dim + col, x * scale[:, None] * weight, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x, residual):
        total = x + residual
        rows, dim = total.shape
        out = torch.empty_like(total)
        rows_kernel[(triton.cdiv(rows, 4),)](
            total, self.weight, out, rows, dim, ROWS=4, BLOCK=triton.next_power_of_2(dim)
        )
        return out, total
