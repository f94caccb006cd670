# task: softmax
# backend: triton
# why: running maximum and sum in one pass over blocks, a second pass to write
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    start = tl.program_id(0) * cols
    top = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for block in range(0, cols, BLOCK):
        offsets = block + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + offsets, mask=offsets < cols, other=-float("inf"))
        new_top = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), axis=0)
        top = new_top
    for block in range(0, cols, BLOCK):
        offsets = block + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + offsets, mask=offsets < cols)
        tl.store(out_ptr + start + offsets, tl.exp(x - top) / total, mask=offsets < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=32)
        return out
