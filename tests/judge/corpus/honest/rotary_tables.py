# task: rotary
# backend: triton
# why: torch makes the tables of sine and cosine for the first length it meets, and longer ones when they are needed
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def turn_kernel(x_ptr, sin_ptr, cos_ptr, out_ptr, length, count, HALF: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    feature = offsets % (2 * HALF)
    row = offsets // (2 * HALF)
    place = (row % length) * HALF + feature % HALF
    is_first = feature < HALF
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0)
    other = tl.load(x_ptr + tl.where(is_first, offsets + HALF, offsets - HALF), mask=inside, other=0.0)
    sin = tl.load(sin_ptr + place, mask=inside, other=0.0)
    cos = tl.load(cos_ptr + place, mask=inside, other=0.0)
    tl.store(out_ptr + offsets, x * cos + tl.where(is_first, -other, other) * sin, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features
        self.sin = self.cos = None

    def tables(self, length, device):
        if self.sin is None or len(self.sin) < length or self.sin.device != device:
            steps = torch.arange(0, self.features, 2, device=device) / self.features
            angles = torch.arange(length, device=device)[:, None] * 10000.0**-steps
            self.sin, self.cos = angles.sin(), angles.cos()
        return self.sin, self.cos

    def forward(self, x):
        sin, cos = self.tables(x.shape[-2], x.device)
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 256),)
        turn_kernel[grid](x, sin, cos, out, x.shape[-2], x.numel(), HALF=self.features // 2, BLOCK=256)
        return out
