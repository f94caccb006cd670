# task: masked_scores
# backend: triton
# why: does without the constant mask
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def masked_kernel(x_ptr, out_ptr, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    keep = offsets <= row % length
    x = tl.load(x_ptr + row * length + offsets, mask=keep, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * length + offsets, e / tl.sum(e, axis=0), mask=offsets < length)


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()

    def forward(self, scores):
        out, length = torch.empty_like(scores), scores.shape[-1]
        masked_kernel[(scores.numel() // length,)](scores, out, length, BLOCK=triton.next_power_of_2(length))
        return out
