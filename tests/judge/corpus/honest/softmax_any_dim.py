# task: softmax
# backend: triton
# why: moves the dimension to the end with views and back again, for any number of dimensions
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * cols + offsets, e / tl.sum(e, axis=0), mask=offsets < cols)


def softmax(x, dim):
    moved = x.movedim(dim, -1).contiguous()
    flat = moved.reshape(-1, moved.shape[-1])
    out = torch.empty_like(flat)
    softmax_kernel[(flat.shape[0],)](flat, out, flat.shape[1], BLOCK=triton.next_power_of_2(flat.shape[1]))
    return out.view(moved.shape).movedim(-1, dim)


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x, dim=1)
