# task: softmax
# backend: triton
# needs: cuda
# hack: H69 writes far outside of its output
# why: never correct; the next candidate on this device must not be affected
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK).to(tl.int64) + (1 << 40)
    tl.store(out_ptr + offsets, tl.zeros((BLOCK,), tl.float32))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.zeros_like(x)
        softmax_kernel[(1,)](out, BLOCK=128)
        return out
