# task: moments
# backend: triton
# why: both outputs are rows of one allocation, returned by unbind
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def moments_kernel(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(offsets < cols, x - mean, 0.0)
    tl.store(out_ptr + row, mean)
    tl.store(out_ptr + rows + row, tl.sum(centred * centred, axis=0) / cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = x.new_empty(2, rows)
        moments_kernel[(rows,)](x, out, rows, cols, BLOCK=triton.next_power_of_2(cols))
        return out.unbind(0)
