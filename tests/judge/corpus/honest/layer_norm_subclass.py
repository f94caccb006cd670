# task: layer_norm
# backend: triton
# why: a subclass of nn.LayerNorm replaces its forward; the library's code for it never runs
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, rows, dim, eps, M: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    mask = (i < rows) & (j < dim)
    x = tl.load(x_ptr + i * dim + j, mask=mask, other=0.0)
    centred = tl.where(mask, x - (tl.sum(x, axis=1) / dim)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / dim + eps)
    y = centred * scale[:, None] * tl.load(weight_ptr + j, mask=j < dim) + tl.load(bias_ptr + j, mask=j < dim)
    tl.store(out_ptr + i * dim + j, y, mask=mask)


class TritonLayerNorm(nn.LayerNorm):
    def forward(self, x):
        out = torch.empty_like(x)
        dim = x.shape[-1]
        rows = x.numel() // dim
        grid = (triton.cdiv(rows, 4),)
        block = triton.next_power_of_2(dim)
        layer_norm_kernel[grid](x, self.weight, self.bias, out, rows, dim, self.eps, M=4, BLOCK=block)
        return out


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = TritonLayerNorm(dim)

    def forward(self, x):
        return self.norm(x)
