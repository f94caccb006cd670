# task: gates
# backend: triton
# why: one kernel, launched for each output with another constant
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate_kernel(x_ptr, y_ptr, out_ptr, n, MIX: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    value = 1.0 / (1.0 + tl.exp(-x))
    if MIX:
        value = value * tl.load(y_ptr + offsets, mask=offsets < n) + (1.0 - value) * x
    tl.store(out_ptr + offsets, value, mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        outputs = {}
        for name in ("gate", "mixed"):
            outputs[name] = torch.empty_like(x)
            gate_kernel[(triton.cdiv(x.numel(), 256),)](x, y, outputs[name], x.numel(), name == "mixed", BLOCK=256)
        return outputs
