# task: layer_norm
# backend: triton
# why: the same state in the same order under other names
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, gain_ptr, shift_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < dim
    x = tl.load(x_ptr + row * dim + offsets, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / dim, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    y = centred * scale * tl.load(gain_ptr + offsets, mask=mask) + tl.load(shift_ptr + offsets, mask=mask)
    tl.store(out_ptr + row * dim + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        out = torch.empty_like(x)
        rows, dim = x.shape
        layer_norm_kernel[(rows,)](x, self.gain, self.shift, out, dim, self.eps, BLOCK=triton.next_power_of_2(dim))
        return out
