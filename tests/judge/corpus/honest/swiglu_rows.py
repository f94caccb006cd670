# task: swiglu
# backend: triton
# why: both halves of a row are read from one pointer
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swiglu_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < width
    gate = tl.load(x_ptr + row * 2 * width + offsets, mask=inside)
    value = tl.load(x_ptr + row * 2 * width + width + offsets, mask=inside)
    tl.store(out_ptr + row * width + offsets, gate * tl.sigmoid(gate) * value, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        tokens, width = x.shape[0], x.shape[1] // 2
        out = x.new_empty(tokens, width)
        swiglu_kernel[(tokens, triton.cdiv(width, 32))](x, out, width, BLOCK=32)
        return out
