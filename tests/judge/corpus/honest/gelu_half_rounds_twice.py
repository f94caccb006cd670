# task: gelu_half
# backend: triton
# why: rounds where torch rounds, after gelu and after the product; as right as gelu_half_in_float
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    gelu = (0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, gelu * tl.load(y_ptr + offsets, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty(x.shape, device=x.device, dtype=torch.half)
        gelu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
