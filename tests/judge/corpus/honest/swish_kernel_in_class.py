# task: swish_chain
# backend: triton
# why: the kernel is an attribute of the class, and the launch is bound with functools.partial
import functools

import torch
import torch.nn as nn
import triton
import triton.language as tl


class ModelNew(nn.Module):
    @triton.jit
    def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
        tl.store(out_ptr + offsets, tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y)), mask=offsets < n)

    def forward(self, x):
        out = torch.empty_like(x)
        launch = functools.partial(ModelNew.kernel[(triton.cdiv(x.numel(), 256),)], BLOCK=256)
        launch(x, out, x.numel())
        return out
