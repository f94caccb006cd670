# task: residual_rms_half
# backend: triton
# why: writes to an input in half precision, as the reference does
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, residual_ptr, gain_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * width, tl.arange(0, BLOCK)
    mask = at < width
    total = tl.load(residual_ptr + row + at, mask=mask, other=0.0) + tl.load(x_ptr + row + at, mask=mask, other=0.0)
    tl.store(residual_ptr + row + at, total, mask=mask)
    wide = total.to(tl.float32)
    y = wide / tl.sqrt(tl.sum(wide * wide, axis=0) / width + eps)
    tl.store(out_ptr + row + at, y.to(out_ptr.dtype.element_ty) * tl.load(gain_ptr + at, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x, residual):
        out = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        norm_kernel[(x.shape[0],)](x, residual, self.gain, out, x.shape[1], 1e-5, BLOCK=block)
        return out
