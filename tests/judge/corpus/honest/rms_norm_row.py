# task: rms_norm
# backend: triton
# why: three-dimensional input seen as rows; a scalar argument from __init__
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < dim
    x = tl.load(x_ptr + row * dim + offsets, mask=mask, other=0.0)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / dim + eps) * tl.load(weight_ptr + offsets, mask=mask)
    tl.store(out_ptr + row * dim + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        out = torch.empty_like(x)
        dim = x.shape[-1]
        rms_norm_kernel[(x.numel() // dim,)](x, self.weight, out, dim, self.eps, BLOCK=triton.next_power_of_2(dim))
        return out
