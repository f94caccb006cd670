# task: split_scale
# backend: triton
# why: three outputs as a list, from one kernel over columns of the input
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def split_kernel(x_ptr, a_ptr, b_ptr, c_ptr, third, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < third
    first = tl.load(x_ptr + 3 * row * third + offsets, mask=mask)
    second = tl.load(x_ptr + (3 * row + 1) * third + offsets, mask=mask)
    last = tl.load(x_ptr + (3 * row + 2) * third + offsets, mask=mask)
    tl.store(a_ptr + row * third + offsets, first * 2, mask=mask)
    tl.store(b_ptr + row * third + offsets, second + first, mask=mask)
    tl.store(c_ptr + row * third + offsets, tl.where(last < 0, 0.0, last), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, third = x.shape[0], x.shape[1] // 3
        outputs = [x.new_empty(rows, third) for _ in range(3)]
        split_kernel[(rows,)](x, *outputs, third, BLOCK=triton.next_power_of_2(third))
        return outputs
