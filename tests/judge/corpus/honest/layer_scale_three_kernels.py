# task: layer_scale
# backend: triton
# why: the branch with its scale, one row in a program
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def branch_kernel(x_ptr, u_ptr, a_ptr, w_ptr, b_ptr, g_ptr, out_ptr, dim, D: tl.constexpr):
    row = tl.program_id(0)
    j, p = tl.arange(0, D), tl.arange(0, D)
    mask = (j[:, None] < dim) & (p[None, :] < dim)
    place = j[:, None] * dim + p[None, :]
    x = tl.load(x_ptr + row * dim + p, mask=p < dim, other=0.0)
    h = tl.sum(tl.load(u_ptr + place, mask=mask, other=0.0) * x[None, :], axis=1)
    h = tl.maximum(h + tl.load(a_ptr + j, mask=j < dim, other=0.0), 0.0)
    y = tl.sum(tl.load(w_ptr + place, mask=mask, other=0.0) * h[None, :], axis=1)
    y += tl.load(b_ptr + j, mask=j < dim, other=0.0)
    tl.store(out_ptr + row * dim + j, x + tl.load(g_ptr + j, mask=j < dim, other=0.0) * y, mask=j < dim)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.gamma = nn.Parameter(1e-6 * torch.ones(dim))

    def forward(self, x):
        out = torch.empty_like(x)
        rows, dim = x.shape
        f, s = self.first, self.second
        args = f.weight, f.bias, s.weight, s.bias, self.gamma, out, dim
        branch_kernel[(rows,)](x, *args, D=triton.next_power_of_2(dim))
        return out
