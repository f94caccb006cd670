# task: avg_pool
# backend: triton
# why: a three-dimensional grid and a two-dimensional block
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pool_kernel(x_ptr, out_ptr, height, width, out_height, out_width, size, M: tl.constexpr, N: tl.constexpr):
    image = tl.program_id(2)
    i = tl.program_id(1) * M + tl.arange(0, M)[:, None]
    j = tl.program_id(0) * N + tl.arange(0, N)[None, :]
    mask = (i < out_height) & (j < out_width)
    total = tl.zeros((M, N), tl.float32)
    for k in range(size * size):
        place = (image * height + i * size + k // size) * width + j * size + k % size
        total += tl.load(x_ptr + place, mask=mask, other=0.0)
    tl.store(out_ptr + (image * out_height + i) * out_width + j, total / (size * size), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        batch, channels, height, width = x.shape
        oh, ow = height // self.size, width // self.size
        out = torch.empty(batch, channels, oh, ow, device=x.device)
        grid = (triton.cdiv(ow, 8), triton.cdiv(oh, 4), batch * channels)
        pool_kernel[grid](x, out, height, width, oh, ow, self.size, M=4, N=8)
        return out
