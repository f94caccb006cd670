# task: swish_chain
# backend: triton
# why: kernels are made by a function, on first use, one for each block size
import torch
import torch.nn as nn
import triton
import triton.language as tl


def make_kernel():
    @triton.jit
    def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
        tl.store(out_ptr + offsets, tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y)), mask=offsets < n)

    return kernel


class ModelNew(nn.Module):
    kernels = {}  # noqa: RUF012

    def forward(self, x):
        block = 128 if x.numel() < 512 else 256
        if block not in self.kernels:
            self.kernels[block] = make_kernel()
        out = torch.empty_like(x)
        self.kernels[block][(triton.cdiv(x.numel(), block),)](x, out, x.numel(), BLOCK=block)
        return out
