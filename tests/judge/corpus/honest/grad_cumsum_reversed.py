# task: cumsum
# backend: triton
# gradients: compared
# why: the same kernel backward, which then adds from the right
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, out_ptr, cols, IS_REVERSED: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=offsets < cols, other=0.0)
    tl.store(out_ptr + place, tl.cumsum(x, axis=0, reverse=IS_REVERSED), mask=offsets < cols)


def scan(x, is_reversed):
    x = x.contiguous()
    out, (rows, cols) = torch.empty_like(x), x.shape
    scan_kernel[(rows,)](x, out, cols, is_reversed, BLOCK=triton.next_power_of_2(cols))
    return out


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scan(x, False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return scan(grad, True)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == 1

    def forward(self, x):
        return Scan.apply(x)
