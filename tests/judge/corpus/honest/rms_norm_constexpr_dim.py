# task: rms_norm
# backend: triton
# why: sizes and eps are compile-time constants, so every shape is a kernel of its own
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, DIM: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < DIM
    x_ptr += tl.program_id(0) * DIM
    out_ptr += tl.program_id(0) * DIM
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, x / tl.sqrt(tl.sum(x * x, axis=0) / DIM + EPS) * weight, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(flat)
        dim = flat.shape[1]
        rms_norm_kernel[(flat.shape[0],)](flat, self.weight, out, dim, self.eps, triton.next_power_of_2(dim))
        return out.view_as(x)
