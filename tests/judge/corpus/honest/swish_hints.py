# task: swish_chain
# backend: triton
# why: 64-bit offsets, compiler hints, cache modifiers and an assertion that holds
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK % 32 == 0)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.max_contiguous(tl.arange(0, BLOCK), BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0, cache_modifier=".cg")
    y = tl.fma(x, 1.0 / (1.0 + tl.exp(-1.5 * x)), 0.25)
    y = tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y))
    tl.store(out_ptr + offsets, y, mask=mask, eviction_policy="evict_first")


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        swish_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out
