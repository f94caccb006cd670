# task: cross_entropy
# backend: triton
# gradients: compared
# why: computes the gradient while the row is in registers, as in Liger; the backward multiplies by one number
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows_kernel(logits_ptr, targets_ptr, losses_ptr, slope_ptr, rows, classes, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offsets < classes
    x = tl.load(logits_ptr + row * classes + offsets, mask=mask, other=-float("inf"))
    target = tl.load(targets_ptr + row)
    x -= tl.max(x, axis=0)
    e = tl.exp(x)
    total = tl.sum(e, axis=0)
    tl.store(losses_ptr + row, tl.log(total) - tl.sum(tl.where(offsets == target, x, 0.0), axis=0))
    slope = (e / total - tl.where(offsets == target, 1.0, 0.0)) / rows
    tl.store(slope_ptr + row * classes + offsets, slope, mask=mask)


@triton.jit
def mean_kernel(losses_ptr, out_ptr, rows, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(losses_ptr + offsets, mask=offsets < rows, other=0.0), axis=0) / rows)


@triton.jit
def times_kernel(slope_ptr, factor_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slope = tl.load(slope_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, slope * tl.load(factor_ptr), mask=offsets < n)


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        (rows, classes), slope = logits.shape, torch.empty_like(logits)
        losses, out = logits.new_empty(rows), logits.new_empty(())
        block = triton.next_power_of_2(classes)
        rows_kernel[(rows,)](logits, targets, losses, slope, rows, classes, BLOCK=block)
        mean_kernel[(1,)](losses, out, rows, BLOCK=triton.next_power_of_2(rows))
        ctx.save_for_backward(slope)
        return out

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        out, n = torch.empty_like(slope), slope.numel()
        times_kernel[(triton.cdiv(n, 256),)](slope, grad, out, n, BLOCK=256)
        return out, None


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        return CrossEntropy.apply(logits, targets)
