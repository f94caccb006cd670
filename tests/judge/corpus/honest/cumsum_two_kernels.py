# task: cumsum
# backend: triton
# why: a first kernel sums blocks, then each block scans itself and adds the sums of the blocks before
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sums_kernel(x_ptr, sums_ptr, cols, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    tl.store(sums_ptr + row * blocks + block, tl.sum(x, axis=0))


@triton.jit
def scan_kernel(x_ptr, sums_ptr, out_ptr, cols, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    before = tl.arange(0, BLOCKS)
    carry = tl.sum(tl.load(sums_ptr + row * blocks + before, mask=before < block, other=0.0), axis=0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=0.0)
    tl.store(out_ptr + row * cols + offsets, tl.cumsum(x, axis=0) + carry, mask=offsets < cols)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        rows, cols = x.shape
        blocks = triton.cdiv(cols, 32)
        out, sums = torch.empty_like(x), x.new_empty(rows, blocks)
        sums_kernel[(rows, blocks)](x, sums, cols, blocks, BLOCK=32)
        scan_kernel[(rows, blocks)](x, sums, out, cols, blocks, BLOCK=32, BLOCKS=triton.next_power_of_2(blocks))
        return out
