# task: layer_norm
# backend: triton
# why: the weights stay in nn.LayerNorm and the kernel reads them there
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < dim
    x = tl.load(x_ptr + row * dim + offsets, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / dim, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    weight = tl.load(weight_ptr + offsets, mask=mask)
    bias = tl.load(bias_ptr + offsets, mask=mask)
    tl.store(out_ptr + row * dim + offsets, centred * scale * weight + bias, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        out = torch.empty_like(x)
        rows, dim = x.shape
        block = triton.next_power_of_2(dim)
        layer_norm_kernel[(rows,)](x, self.norm.weight, self.norm.bias, out, dim, self.norm.eps, BLOCK=block)
        return out
