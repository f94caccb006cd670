# task: softmax
# backend: triton
# why: maximum, sum and quotient are three launches with scratch tensors between them
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def max_kernel(x_ptr, top_ptr, cols, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=-float("inf"))
    tl.store(top_ptr + row, tl.max(x, axis=0))


@triton.jit
def sum_kernel(x_ptr, top_ptr, total_ptr, cols, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=-float("inf"))
    tl.store(total_ptr + row, tl.sum(tl.exp(x - tl.load(top_ptr + row)), axis=0))


@triton.jit
def divide_kernel(x_ptr, top_ptr, total_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols)
    y = tl.exp(x - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    tl.store(out_ptr + row * cols + offsets, y, mask=offsets < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out, top, total = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
        block = triton.next_power_of_2(cols)
        max_kernel[(rows,)](x, top, cols, BLOCK=block)
        sum_kernel[(rows,)](x, top, total, cols, BLOCK=block)
        divide_kernel[(rows,)](x, top, total, out, cols, BLOCK=block)
        return out
