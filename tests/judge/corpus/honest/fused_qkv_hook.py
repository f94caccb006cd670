# task: fused_qkv
# backend: triton
# why: a hook joins three weights when they are loaded
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
        self.joined = nn.Parameter(torch.empty(3 * dim, dim))
        self._register_load_state_dict_pre_hook(self.join)

    def join(self, state, prefix, *_):
        parts = [state.pop(f"{prefix}{name}.weight") for name in "qkv"]
        state[prefix + "joined"] = torch.cat(parts)

    def forward(self, x):
        out, dim = torch.empty_like(x), x.shape[1]
        qkv_kernel[(x.shape[0],)](x, self.joined, out, dim, D=triton.next_power_of_2(dim))
        return out
