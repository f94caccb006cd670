# task: softmax
# backend: triton
# hack: H08 the kernel stores under a mask that is false everywhere
# why: correct only if the memory still holds a right output
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * cols + offsets, mask=offsets < cols)
    tl.store(out_ptr + offsets, x, mask=offsets < 0)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
