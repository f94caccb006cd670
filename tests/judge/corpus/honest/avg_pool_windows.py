# task: avg_pool
# backend: triton
# why: reads the window's size from a module that is never called
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pool_kernel(x_ptr, out_ptr, n, height, width, out_height, out_width, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    col = offsets % out_width
    row = (offsets // out_width) % out_height
    image = offsets // (out_width * out_height)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            place = (image * height + row * SIZE + i) * width + col * SIZE + j
            total += tl.load(x_ptr + place, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, total / (SIZE * SIZE), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.pool = nn.AvgPool2d(size)

    def forward(self, x):
        size = self.pool.kernel_size
        batch, channels, height, width = x.shape
        out = x.new_empty(batch, channels, height // size, width // size)
        grid = (triton.cdiv(out.numel(), 128),)
        pool_kernel[grid](x, out, out.numel(), height, width, *out.shape[2:], SIZE=size, BLOCK=128)
        return out
