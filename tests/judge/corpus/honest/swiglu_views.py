# task: swiglu
# backend: triton
# why: the kernel gets two views of the input, which are not contiguous, and their strides
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def silu_product_kernel(gate_ptr, value_ptr, out_ptr, count, width, gate_stride, value_stride, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    row, col = offsets // width, offsets % width
    gate = tl.load(gate_ptr + row * gate_stride + col, mask=inside, other=0.0)
    value = tl.load(value_ptr + row * value_stride + col, mask=inside, other=0.0)
    tl.store(out_ptr + offsets, value * gate / (1.0 + tl.exp(-gate)), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        gate, value = x.chunk(2, dim=-1)
        out = torch.empty(gate.shape, dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(out.numel(), 64),)
        silu_product_kernel[grid](
            gate, value, out, out.numel(), gate.shape[-1], gate.stride(0), value.stride(0), BLOCK=64
        )
        return out
