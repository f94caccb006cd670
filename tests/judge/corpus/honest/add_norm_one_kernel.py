# task: add_norm
# backend: triton
# why: the sum is written and normalised in the same pass; two outputs
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, dim, eps, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    inside = place < dim
    offsets = tl.program_id(0) * dim + place
    total = tl.load(x_ptr + offsets, mask=inside, other=0.0) + tl.load(residual_ptr + offsets, mask=inside, other=0.0)
    tl.store(total_ptr + offsets, total, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / dim + eps)
    tl.store(out_ptr + offsets, total * scale * tl.load(weight_ptr + place, mask=inside, other=0.0), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x, residual):
        dim = x.shape[-1]
        out, total = torch.empty_like(x), torch.empty_like(x)
        add_norm_kernel[(x.numel() // dim,)](
            x, residual, self.weight, out, total, dim, 1e-6, BLOCK=triton.next_power_of_2(dim)
        )
        return out, total
