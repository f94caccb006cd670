# task: rotary
# backend: triton
# why: sine and cosine are computed in the kernel, from the buffer of frequencies
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rotary_kernel(x_ptr, frequency_ptr, out_ptr, length, HALF: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, HALF)
    angle = (row % length).to(tl.float32) * tl.load(frequency_ptr + place)
    sin, cos = tl.sin(angle), tl.cos(angle)
    first = tl.load(x_ptr + row * 2 * HALF + place)
    second = tl.load(x_ptr + row * 2 * HALF + HALF + place)
    tl.store(out_ptr + row * 2 * HALF + place, first * cos - second * sin)
    tl.store(out_ptr + row * 2 * HALF + HALF + place, second * cos + first * sin)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, features, 2) / features), persistent=False)

    def forward(self, x):
        out = torch.empty_like(x)
        rotary_kernel[(x.numel() // x.shape[-1],)](x, self.frequencies, out, x.shape[-2], HALF=x.shape[-1] // 2)
        return out
