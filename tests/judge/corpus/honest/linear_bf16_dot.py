# task: linear_bf16
# backend: triton
# needs: cuda
# why: bfloat16 operands and single-precision sums, as on tensor cores; Triton's interpreter does not support this
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(x_ptr, w_ptr, out_ptr, rows, outs, ins, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, ins, K):
        p = start + tl.arange(0, K)
        x = tl.load(x_ptr + i[:, None] * ins + p[None, :], mask=(i[:, None] < rows) & (p[None, :] < ins), other=0.0)
        w = tl.load(w_ptr + j[None, :] * ins + p[:, None], mask=(j[None, :] < outs) & (p[:, None] < ins), other=0.0)
        total += tl.dot(x, w)
    mask = (i[:, None] < rows) & (j[None, :] < outs)
    tl.store(out_ptr + i[:, None] * outs + j[None, :], total.to(tl.bfloat16), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        weight = self.linear.weight
        (rows, ins), outs = x.shape, weight.shape[0]
        out = x.new_empty(rows, outs)
        grid = (triton.cdiv(rows, 16), triton.cdiv(outs, 16))
        linear_kernel[grid](x, weight, out, rows, outs, ins, M=16, N=16, K=32)
        return out
