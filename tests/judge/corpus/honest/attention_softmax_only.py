# task: attention
# backend: triton
# allow: library_matmul
# why: both products are torch.bmm, scaling and softmax are a kernel, in place on the scores
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, cols, scale, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    place = tl.program_id(0) * cols + offsets
    x = tl.load(x_ptr + place, mask=offsets < cols, other=-float("inf")) * scale
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(x_ptr + place, e / tl.sum(e, axis=0), mask=offsets < cols)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        scores = torch.bmm(q, k.mT)
        cols = scores.shape[-1]
        softmax_kernel[(scores.numel() // cols,)](scores, cols, q.shape[-1] ** -0.5, triton.next_power_of_2(cols))
        return torch.bmm(scores, v)
