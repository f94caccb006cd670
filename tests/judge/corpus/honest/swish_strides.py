# task: swish_chain
# backend: triton
# why: two-dimensional grid and explicit strides, for inputs of any layout
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, out_ptr, rows, cols, x_row, x_col, out_row, out_col, M: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    j = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    mask = (i < rows) & (j < cols)
    x = tl.load(x_ptr + i * x_row + j * x_col, mask=mask)
    y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
    y = tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y))
    tl.store(out_ptr + i * out_row + j * out_col, y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty_like(x)
        grid = (triton.cdiv(rows, 4), triton.cdiv(cols, 64))
        swish_kernel[grid](x, out, rows, cols, *x.stride(), *out.stride(), M=4, N=64)
        return out
