# task: scaled_transpose
# backend: triton
# why: rows of the output are padded to a multiple of 16, so it is a slice with gaps in memory
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, cols, pitch, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols)
    tl.store(out_ptr + row * pitch + offsets, x * scale + 1.0, mask=offsets < cols)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        batch, rows, cols = x.shape
        padded = x.new_empty(batch, rows, triton.cdiv(cols, 16) * 16)
        block = triton.next_power_of_2(cols)
        scale_kernel[(batch * rows,)](x, padded, cols, padded.shape[2], self.scale, BLOCK=block)
        return padded[:, :, :cols].mT
