# task: layer_norm
# backend: triton
# why: a reduction with a combine function of its own, over three values at once
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def combine(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    share = tl.where(count == 0, 0.0, count_b / tl.where(count == 0, 1.0, count))
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share, count


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < dim
    x = tl.load(x_ptr + tl.program_id(0) * dim + offsets, mask=mask, other=0.0)
    mean, m2, _ = tl.reduce((x, tl.zeros_like(x), mask.to(tl.float32)), 0, combine)
    y = (x - mean) / tl.sqrt(m2 / dim + eps)
    y = y * tl.load(weight_ptr + offsets, mask=mask) + tl.load(bias_ptr + offsets, mask=mask)
    tl.store(out_ptr + tl.program_id(0) * dim + offsets, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        out = torch.empty_like(x)
        norm, dim = self.norm, x.shape[-1]
        block = triton.next_power_of_2(dim)
        layer_norm_kernel[(x.numel() // dim,)](x, norm.weight, norm.bias, out, dim, norm.eps, BLOCK=block)
        return out
