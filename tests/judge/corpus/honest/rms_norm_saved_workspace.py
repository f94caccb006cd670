# task: rms_norm
# backend: triton
# why: has a buffer that the reference does not have
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_kernel(x_ptr, out_ptr, cols, w_ptr, eps, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    y = x / tl.sqrt(tl.sum(x * x, axis=0) / cols + eps)
    out = y * tl.load(w_ptr + offsets, mask=mask)
    tl.store(out_ptr + place, out, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.register_buffer("counter", torch.zeros(4))

    def forward(self, x):
        cols = x.shape[-1]
        out = x.new_empty(x.shape)
        row_kernel[(x.numel() // cols,)](x, out, cols, self.weight, self.eps, BLOCK=triton.next_power_of_2(cols))
        return out
