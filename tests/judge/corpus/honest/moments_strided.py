# task: moments
# backend: triton
# why: both outputs are columns of one allocation: not contiguous, and interleaved in memory
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def moments_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(offsets < cols, x - mean, 0.0)
    tl.store(out_ptr + 2 * row, mean)
    tl.store(out_ptr + 2 * row + 1, tl.sum(centred * centred, axis=0) / cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = x.new_empty(rows, 2)
        moments_kernel[(rows,)](x, out, cols, BLOCK=triton.next_power_of_2(cols))
        return out[:, 0], out[:, 1]
