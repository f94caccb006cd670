# task: gates
# backend: triton
# why: the dict's keys come in another order than the reference's, and by keyword arguments
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
        outputs = {"mixed": torch.empty_like(x), "gate": torch.empty_like(y)}
        grid = (triton.cdiv(x.numel(), 128),)
        gates_kernel[grid](
            x_ptr=x, y_ptr=y, gate_ptr=outputs["gate"], mixed_ptr=outputs["mixed"], n=x.numel(), BLOCK=128
        )
        return outputs
