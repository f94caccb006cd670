# task: largest_of_eight
# backend: triton
# why: every element of the result is zero or the input's
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def keep_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place = tl.program_id(0) * BLOCK + at
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + place, x, mask=at == tl.argmax(tl.abs(x), axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.zeros_like(x)
        keep_kernel[(x.numel() // 8,)](x, out, BLOCK=8)
        return out
