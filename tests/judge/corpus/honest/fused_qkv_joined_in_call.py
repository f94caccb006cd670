# task: fused_qkv
# backend: triton
# why: joins three weights in every call
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def qkv_kernel(x_ptr, w_ptr, out_ptr, dim, D: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, D)
    p = tl.arange(0, D)
    x = tl.load(x_ptr + row * dim + p, mask=p < dim, other=0.0)
    mask = (j[:, None] < dim) & (p[None, :] < dim)
    place = j[:, None] * dim + p[None, :]
    q = tl.sum(tl.load(w_ptr + place, mask=mask, other=0.0) * x[None, :], axis=1)
    k = tl.sum(tl.load(w_ptr + dim * dim + place, mask=mask, other=0.0) * x[None, :], axis=1)
    v = tl.sum(tl.load(w_ptr + 2 * dim * dim + place, mask=mask, other=0.0) * x[None, :], axis=1)
    tl.store(out_ptr + row * dim + j, q * k + v, mask=j < dim)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x):
        out, dim = torch.empty_like(x), x.shape[1]
        qkv_kernel[(x.shape[0],)](
            x, torch.cat([self.q.weight, self.k.weight, self.v.weight]), out, dim, D=triton.next_power_of_2(dim)
        )
        return out
