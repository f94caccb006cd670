# task: batch_norm_eval
# backend: triton
# why: torch folds the statistics to scale and shift in each call, and the kernel does the rest
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine_kernel(x_ptr, scale_ptr, shift_ptr, out_ptr, n, size, channels, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    channel = (offsets // size) % channels
    x = tl.load(x_ptr + offsets, mask=mask)
    y = x * tl.load(scale_ptr + channel, mask=mask) + tl.load(shift_ptr + channel, mask=mask)
    tl.store(out_ptr + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        norm, out = self.norm, torch.empty_like(x)
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        n, size = x.numel(), x.shape[2] * x.shape[3]
        affine_kernel[(triton.cdiv(n, 256),)](x, scale, shift, out, n, size, x.shape[1], BLOCK=256)
        return out
