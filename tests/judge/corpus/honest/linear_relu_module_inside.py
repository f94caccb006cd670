# task: linear_relu
# backend: triton
# allow: library_matmul
# why: nn.Linear is called as it is, and only relu is a kernel, in place on its result
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, tl.where(x < 0, 0.0, x), mask=offsets < n)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        x = self.linear(x)
        relu_kernel[(triton.cdiv(x.numel(), 128),)](x, x.numel(), BLOCK=128)
        return x
