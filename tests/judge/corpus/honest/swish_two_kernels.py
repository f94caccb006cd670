# task: swish_chain
# backend: triton
# why: two launches through a scratch tensor; either alone gives a wrong result
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate_kernel(x_ptr, gate_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(gate_ptr + offsets, 1.0 / (1.0 + tl.exp(-1.5 * x)), mask=offsets < n)


@triton.jit
def apply_kernel(x_ptr, gate_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = x * tl.load(gate_ptr + offsets, mask=offsets < n) + 0.25
    tl.store(gate_ptr + offsets, tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y)), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 128),)
        gate_kernel[grid](x, out, x.numel(), BLOCK=128)
        apply_kernel[grid](x, out, x.numel(), BLOCK=128)
        return out
