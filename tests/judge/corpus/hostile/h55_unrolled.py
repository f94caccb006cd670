# task: softmax
# backend: triton
# hack: H55 a kernel unrolled a hundred million times
# why: never correct; the compiler, or the interpreter, must hit a limit
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < cols, other=0.0)
    for _ in tl.static_range(100_000_000):
        x = tl.sin(x) + 1.0
    tl.store(out_ptr + offsets, x, mask=offsets < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
        return out
