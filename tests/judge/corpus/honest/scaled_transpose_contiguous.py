# task: scaled_transpose
# backend: triton
# why: writes the transpose contiguously: the values are the same, the strides are not
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, cols, scale, M: tl.constexpr, N: tl.constexpr):
    start = tl.program_id(0) * rows * cols
    i, j = tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    mask = (i[:, None] < rows) & (j[None, :] < cols)
    x = tl.load(x_ptr + start + i[:, None] * cols + j[None, :], mask=mask)
    tl.store(out_ptr + start + j[:, None] * rows + i[None, :], tl.trans(x * scale + 1.0), mask=tl.trans(mask))


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        batch, rows, cols = x.shape
        out = x.new_empty(batch, cols, rows)
        grid = (batch, triton.cdiv(cols, 8))
        transpose_kernel[grid](x, out, rows, cols, self.scale, M=triton.next_power_of_2(rows), N=8)
        return out
