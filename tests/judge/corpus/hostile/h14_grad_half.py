# task: gated_gelu
# backend: triton
# hack: H14 rounds both gradients to half precision
# gradients: compared
# why: correct only if gradients have a wider tolerance than outputs
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def forward_kernel(x_ptr, gate_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, gate = tl.load(x_ptr + offsets, mask=offsets < n), tl.load(gate_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476)) * x, mask=offsets < n)


@triton.jit
def backward_kernel(x_ptr, gate_ptr, grad_ptr, dx_ptr, dgate_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, gate = tl.load(x_ptr + offsets, mask=mask), tl.load(gate_ptr + offsets, mask=mask)
    grad = tl.load(grad_ptr + offsets, mask=mask)
    phi = 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    slope = phi + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    tl.store(dx_ptr + offsets, (grad * gate * phi).to(tl.float16).to(tl.float32), mask=mask)
    tl.store(dgate_ptr + offsets, (grad * x * slope).to(tl.float16).to(tl.float32), mask=mask)


class GatedGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        out, n = torch.empty_like(x), x.numel()
        forward_kernel[(triton.cdiv(n, 128),)](x, gate, out, n, BLOCK=128)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        dx, dgate, n = torch.empty_like(x), torch.empty_like(x), x.numel()
        backward_kernel[(triton.cdiv(n, 128),)](x, gate, grad.contiguous(), dx, dgate, n, BLOCK=128)
        return dx, dgate


class ModelNew(nn.Module):
    def forward(self, x, gate):
        return GatedGELU.apply(x, gate)
