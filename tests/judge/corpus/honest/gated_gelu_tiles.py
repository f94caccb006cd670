# task: gated_gelu
# backend: triton
# why: tiles of two dimensions with strides, the grid as a function of the block sizes
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tile_kernel(x_ptr, gate_ptr, out_ptr, rows, cols, stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    place = row * stride + col
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0)
    gelu = gate * (0.5 + 0.5 * tl.erf(gate / 1.4142135623730951))
    tl.store(out_ptr + place, gelu * tl.load(x_ptr + place, mask=inside, other=0.0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, gate):
        out = torch.empty_like(x)
        rows, cols = x.shape
        grid = lambda meta: (triton.cdiv(rows, meta["ROWS"]), triton.cdiv(cols, meta["COLS"]))  # noqa: E731
        tile_kernel[grid](x, gate, out, rows, cols, x.stride(0), ROWS=4, COLS=32)
        return out
