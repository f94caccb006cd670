# task: swish_chain
# backend: triton
# why: the kernel is called from a module inside a module inside ModelNew
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


class Swish(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Swish(depth - 1) if depth else None

    def forward(self, x):
        if self.inner is not None:
            return self.inner(x)
        out = torch.empty_like(x)
        n = x.numel()
        swish_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Identity(), Swish(3))

    def forward(self, x):
        return self.body(x)
