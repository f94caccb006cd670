# task: linear_relu
# backend: triton
# allow: library_matmul
# why: cuBLAS computes the product, and a kernel of its own adds bias and relu; a small share, but no fraud
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def bias_relu_kernel(x_ptr, bias_ptr, n, cols, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n) + tl.load(bias_ptr + offsets % cols, mask=offsets < n)
    tl.store(x_ptr + offsets, tl.where(x < 0, 0.0, x), mask=offsets < n)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        y = F.linear(x, self.linear.weight)
        bias_relu_kernel[(triton.cdiv(y.numel(), 128),)](y, self.linear.bias, y.numel(), y.shape[1], BLOCK=128)
        return y
