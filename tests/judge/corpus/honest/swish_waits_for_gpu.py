# task: swish_chain
# backend: triton
# needs: cuda
# why: waits for the GPU in each call and reads a number back, so its launches are never queued together
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
    y = tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y))
    tl.store(out_ptr + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        torch.cuda.synchronize()
        out = torch.empty_like(x)
        size = 256 if x.flatten()[0].item() > 0 else 128
        swish_kernel[(triton.cdiv(x.numel(), size),)](x, out, x.numel(), BLOCK=size)
        torch.cuda.synchronize()
        return out
