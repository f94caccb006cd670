# task: unit_chain
# backend: triton
# why: computes five activations in one kernel
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def chain_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n)
    x = tl.where(x > 0, x, 0.2 * (tl.exp(x) - 1))
    x = tl.minimum(tl.maximum(x, -0.9), 1.0)
    x = tl.where(x > 0, x, 0.7 * 0.3 * (tl.exp(x) - 1))
    tl.store(out_ptr + place, x, mask=place < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        chain_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
