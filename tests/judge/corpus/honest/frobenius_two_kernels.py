# task: frobenius
# backend: triton
# why: a sum over all elements in one launch, the quotient in the next
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def squares_kernel(x_ptr, parts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(parts_ptr + tl.program_id(0), tl.sum(x * x, axis=0))


@triton.jit
def divide_kernel(x_ptr, parts_ptr, out_ptr, n, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    which = tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(parts_ptr + which, mask=which < parts, other=0.0), axis=0))
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) / norm, mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        parts = triton.cdiv(n, 256)
        partial, out = x.new_empty(parts), torch.empty_like(x)
        squares_kernel[(parts,)](x, partial, n, BLOCK=256)
        divide_kernel[(parts,)](x, partial, out, n, parts, BLOCK=256, PARTS=triton.next_power_of_2(parts))
        return out
