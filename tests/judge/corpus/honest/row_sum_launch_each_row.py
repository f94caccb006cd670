# task: row_sum
# backend: triton
# why: one launch for each row, which computes one number; all of them together are the result
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + offsets, mask=offsets < cols, other=0.0), axis=0))


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = x.new_empty(x.shape[0])
        for row in range(x.shape[0]):
            sum_kernel[(1,)](x[row], out[row], x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
