# task: mse_loss
# backend: triton
# why: partial sums, and a second kernel that adds them
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partial_kernel(p_ptr, t_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    d = tl.load(p_ptr + offsets, mask=mask, other=0.0) - tl.load(t_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(d * d, axis=0))


@triton.jit
def total_kernel(parts_ptr, out_ptr, parts, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(parts_ptr + offsets, mask=offsets < parts, other=0.0), axis=0) / n)


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        n = predictions.numel()
        parts = triton.cdiv(n, 128)
        partial, out = predictions.new_empty(parts), predictions.new_empty(())
        partial_kernel[(parts,)](predictions, targets, partial, n, BLOCK=128)
        total_kernel[(1,)](partial, out, parts, n, BLOCK=triton.next_power_of_2(parts))
        return out
