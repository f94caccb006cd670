# task: softmax
# backend: triton
# why: block pointers with boundary checks in place of masks
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = tl.make_block_ptr(x_ptr, (rows, cols), (cols, 1), (row, 0), (1, BLOCK), (1, 0))
    target = tl.make_block_ptr(out_ptr, (rows, cols), (cols, 1), (row, 0), (1, BLOCK), (1, 0))
    x = tl.load(source, boundary_check=(1,), padding_option="zero")
    x = tl.where(tl.arange(0, BLOCK)[None, :] < cols, x, -float("inf"))
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(target, e / tl.sum(e, axis=1)[:, None], boundary_check=(1,))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty_like(x)
        softmax_kernel[(rows,)](x, out, rows, cols, BLOCK=triton.next_power_of_2(cols))
        return out
