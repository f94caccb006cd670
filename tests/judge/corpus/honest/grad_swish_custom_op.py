# task: swish_chain
# backend: triton
# gradients: compared
# why: forward and backward are operators of its own, joined by register_autograd
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = x / (1.0 + tl.exp(-1.5 * x)) + 0.25
    tl.store(out_ptr + offsets, tl.where(y < -1.0, -1.0, tl.where(y > 6.0, 6.0, y)), mask=offsets < n)


@triton.jit
def swish_backward_kernel(x_ptr, grad_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    grad = tl.load(grad_ptr + offsets, mask=offsets < n)
    s = 1.0 / (1.0 + tl.exp(-1.5 * x))
    y = x * s + 0.25
    slope = tl.where((y < -1.0) | (y > 6.0), 0.0, s + 1.5 * x * s * (1.0 - s))
    tl.store(dx_ptr + offsets, grad * slope, mask=offsets < n)


@torch.library.custom_op("kc_corpus::grad_swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    out, n = torch.empty_like(x), x.numel()
    swish_kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


@torch.library.custom_op("kc_corpus::grad_swish_backward", mutates_args=())
def swish_backward(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    dx, n = torch.empty_like(x), x.numel()
    swish_backward_kernel[(triton.cdiv(n, 256),)](x, grad.contiguous(), dx, n, BLOCK=256)
    return dx


def keep_input(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def gradient(ctx, grad):
    return swish_backward(*ctx.saved_tensors, grad)


swish.register_autograd(gradient, setup_context=keep_input)


class ModelNew(nn.Module):
    def forward(self, x):
        return swish(x)
