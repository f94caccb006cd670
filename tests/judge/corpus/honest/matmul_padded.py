# task: matmul
# backend: triton
# why: torch pads the operands and cuts the result; the product itself needs no mask
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, n, k, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)[:, None]
    j = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    total = tl.zeros((B, B), tl.float32)
    for start in range(0, k, B):
        p = start + tl.arange(0, B)
        a, b = tl.load(a_ptr + i * k + p[None, :]), tl.load(b_ptr + p[:, None] * n + j)
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + i * n + j, total)


def padded(x, block):
    rows, cols = x.shape
    return F.pad(x, (0, -cols % block, 0, -rows % block)).contiguous()


class ModelNew(nn.Module):
    def forward(self, a, b):
        m, n = a.shape[0], b.shape[1]
        a, b = padded(a, 16), padded(b, 16)
        c = a.new_empty(a.shape[0], b.shape[1])
        matmul_kernel[(a.shape[0] // 16, b.shape[1] // 16)](a, b, c, b.shape[1], a.shape[1], B=16)
        return c[:m, :n]
