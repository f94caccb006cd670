# task: mse_loss
# backend: triton
# gradients: compared
# why: the forward stores the gradient; the backward only scales it, and negates it for the targets
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def loss_kernel(p_ptr, t_ptr, slope_ptr, parts_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    d = tl.load(p_ptr + offsets, mask=mask, other=0.0) - tl.load(t_ptr + offsets, mask=mask, other=0.0)
    tl.store(slope_ptr + offsets, 2.0 * d / n, mask=mask)
    tl.store(parts_ptr + tl.program_id(0), tl.sum(d * d, axis=0))


@triton.jit
def mean_kernel(parts_ptr, out_ptr, parts, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(parts_ptr + offsets, mask=offsets < parts, other=0.0), axis=0) / n)


@triton.jit
def scale_kernel(slope_ptr, grad_ptr, dp_ptr, dt_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slope = tl.load(slope_ptr + offsets, mask=offsets < n) * tl.load(grad_ptr)
    tl.store(dp_ptr + offsets, slope, mask=offsets < n)
    tl.store(dt_ptr + offsets, -slope, mask=offsets < n)


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, t):
        n = p.numel()
        blocks = triton.cdiv(n, 128)
        slope, parts, out = torch.empty_like(p), p.new_empty(blocks), p.new_empty(())
        loss_kernel[(blocks,)](p, t, slope, parts, n, BLOCK=128)
        mean_kernel[(1,)](parts, out, blocks, n, BLOCK=triton.next_power_of_2(blocks))
        ctx.save_for_backward(slope)
        return out

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        dp, dt, n = torch.empty_like(slope), torch.empty_like(slope), slope.numel()
        scale_kernel[(triton.cdiv(n, 128),)](slope, grad, dp, dt, n, BLOCK=128)
        return dp, dt


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        return Loss.apply(predictions, targets)
