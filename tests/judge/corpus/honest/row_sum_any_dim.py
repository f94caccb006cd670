# task: row_sum
# backend: triton
# why: keeps to the dimension given to __init__, with strides, for negative ones too
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, length, outer, inner, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + tl.program_id(0) * outer + offsets * inner, mask=offsets < length, other=0.0)
        total += x
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, axis=0))


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        kept = 1 - self.dim % 2
        out = x.new_empty(x.shape[kept])
        sum_kernel[(x.shape[kept],)](x, out, x.shape[self.dim], x.stride(kept), x.stride(self.dim), BLOCK=64)
        return out
