# task: rms_norm
# backend: triton
# why: scales in one kernel, the product in another over a two-dimensional grid
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, scale_ptr, dim, eps, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, dim, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + tl.program_id(0) * dim + offsets, mask=offsets < dim, other=0.0)
        total += x * x
    tl.store(scale_ptr + tl.program_id(0), 1.0 / tl.sqrt(tl.sum(total, axis=0) / dim + eps))


@triton.jit
def apply_kernel(x_ptr, scale_ptr, weight_ptr, out_ptr, dim, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < dim
    x = tl.load(x_ptr + row * dim + offsets, mask=mask)
    y = x * tl.load(scale_ptr + row) * tl.load(weight_ptr + offsets, mask=mask)
    tl.store(out_ptr + row * dim + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        dim = x.shape[-1]
        rows = x.numel() // dim
        out, scale = torch.empty_like(x), torch.empty(rows, device=x.device)
        scale_kernel[(rows,)](x, scale, dim, self.eps, BLOCK=32)
        apply_kernel[(triton.cdiv(dim, 32), rows)](x, scale, self.weight, out, dim, BLOCK=32)
        return out
