# task: mse_loss
# backend: triton
# why: the sum is read, divided as a number of Python's, and made a tensor again
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def squares_kernel(p_ptr, t_ptr, total_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    d = tl.load(p_ptr + offsets, mask=mask, other=0.0) - tl.load(t_ptr + offsets, mask=mask, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(d * d, axis=0))


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        n = predictions.numel()
        total = predictions.new_zeros(1)
        squares_kernel[(triton.cdiv(n, 128),)](predictions, targets, total, n, BLOCK=128)
        return torch.tensor(total.item() / n, device=predictions.device)
