# task: softmax
# backend: triton
# hack: H64 a kernel that waits for a number that never changes
# why: never correct; the judge must kill it, and the device must be usable afterwards
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    total = tl.load(x_ptr)
    while total < 1e30:
        total = tl.minimum(total + 1.0, 10.0)
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32) + total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(1,)](x, out, BLOCK=16)
        return out
