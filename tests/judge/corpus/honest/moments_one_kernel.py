# task: moments
# backend: triton
# why: two outputs from one kernel, as a tuple
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def moments_kernel(x_ptr, mean_ptr, var_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(offsets < cols, x - mean, 0.0)
    tl.store(mean_ptr + row, mean)
    tl.store(var_ptr + row, tl.sum(centred * centred, axis=0) / cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        mean, var = x.new_empty(rows), x.new_empty(rows)
        moments_kernel[(rows,)](x, mean, var, cols, BLOCK=triton.next_power_of_2(cols))
        return mean, var
