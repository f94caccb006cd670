# task: residual_mlp
# backend: triton
# why: all state is flat and under other names, in the reference's order
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, dim, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < dim
    x = tl.load(x_ptr + row * dim + offsets, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / dim, 0.0)
    y = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    y = y * tl.load(weight_ptr + offsets, mask=mask) + tl.load(bias_ptr + offsets, mask=mask)
    tl.store(out_ptr + row * dim + offsets, y, mask=mask)


@triton.jit
def layer_kernel(
    x_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, outs, ins, SILU: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    row = tl.program_id(0)
    j, p = tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + row * ins + p, mask=p < ins, other=0.0)
    w = tl.load(w_ptr + j[:, None] * ins + p[None, :], mask=(j[:, None] < outs) & (p[None, :] < ins), other=0.0)
    y = tl.sum(w * x[None, :], axis=1) + tl.load(bias_ptr + j, mask=j < outs, other=0.0)
    if SILU:
        y = y / (1.0 + tl.exp(-y))
    else:
        y += tl.load(add_ptr + row * outs + j, mask=j < outs, other=0.0)
    tl.store(out_ptr + row * outs + j, y, mask=j < outs)


def layer(x, weight, bias, add=None):
    outs, ins = weight.shape
    out = x.new_empty(x.shape[0], outs)
    n, k = triton.next_power_of_2(outs), triton.next_power_of_2(ins)
    layer_kernel[(x.shape[0],)](x, weight, bias, x if add is None else add, out, outs, ins, add is None, N=n, K=k)
    return out


def norm(x, weight, bias, eps):
    out = torch.empty_like(x)
    dim = x.shape[1]
    norm_kernel[(x.shape[0],)](x, weight, bias, out, dim, eps, BLOCK=triton.next_power_of_2(dim))
    return out


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        up, down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm_weight = nn.Parameter(torch.ones(dim))
        self.norm_bias = nn.Parameter(torch.zeros(dim))
        self.up_weight, self.up_bias = nn.Parameter(up.weight.data), nn.Parameter(up.bias.data)
        self.down_weight, self.down_bias = nn.Parameter(down.weight.data), nn.Parameter(down.bias.data)

    def forward(self, x):
        h = norm(x, self.norm_weight, self.norm_bias, 1e-5)
        h = layer(h, self.up_weight, self.up_bias)
        return layer(h, self.down_weight, self.down_bias, add=x)
