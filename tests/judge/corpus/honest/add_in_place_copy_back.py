# task: add_in_place
# backend: triton
# why: computes elsewhere and copies the result into its input, which it then returns
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask) * 0.5
    tl.store(x_ptr + offsets, x + tl.load(y_ptr + offsets, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y):
        scratch = x.clone()
        add_kernel[(triton.cdiv(x.numel(), 256),)](scratch, y, x.numel(), BLOCK=256)
        x.copy_(scratch)
        return x
