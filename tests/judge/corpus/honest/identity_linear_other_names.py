# task: identity_linear
# backend: triton
# why: has the reference's parameters under other names, in the same order
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(x_ptr, w_ptr, b_ptr, out_ptr, dim, D: tl.constexpr):
    row = tl.program_id(0)
    j, p = tl.arange(0, D), tl.arange(0, D)
    mask = (j[:, None] < dim) & (p[None, :] < dim)
    x = tl.load(x_ptr + row * dim + p, mask=p < dim, other=0.0)
    w = tl.load(w_ptr + j[:, None] * dim + p[None, :], mask=mask, other=0.0)
    y = tl.sum(w * x[None, :], axis=1) + tl.load(b_ptr + j, mask=j < dim, other=0.0)
    tl.store(out_ptr + row * dim + j, y, mask=j < dim)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(dim))
        self.move = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        out = torch.empty_like(x)
        linear_kernel[(x.shape[0],)](x, self.matrix, self.move, out, x.shape[1], D=triton.next_power_of_2(x.shape[1]))
        return out
