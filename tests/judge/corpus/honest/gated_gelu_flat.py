# task: gated_gelu
# backend: triton
# why: one dimension over all elements
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gated_gelu_kernel(x_ptr, gate_ptr, out_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    gate = tl.load(gate_ptr + offsets, mask=inside)
    x = tl.load(x_ptr + offsets, mask=inside)
    gelu = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(out_ptr + offsets, gelu * x, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, gate):
        x, gate = x.contiguous(), gate.contiguous()
        out = torch.empty_like(x)
        count = x.numel()
        gated_gelu_kernel[(triton.cdiv(count, 128),)](x, gate, out, count, BLOCK=128)
        return out
