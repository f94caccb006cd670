# task: gates
# backend: triton
# why: two outputs as a dict
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gates_kernel(x_ptr, y_ptr, gate_ptr, mixed_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
    gate = 1.0 / (1.0 + tl.exp(-x))
    tl.store(gate_ptr + offsets, gate, mask=mask)
    tl.store(mixed_ptr + offsets, gate * y + (1.0 - gate) * x, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y):
        gate, mixed = torch.empty_like(x), torch.empty_like(x)
        gates_kernel[(triton.cdiv(x.numel(), 128),)](x, y, gate, mixed, x.numel(), BLOCK=128)
        return {"gate": gate, "mixed": mixed}
