# task: top_values
# backend: triton
# why: returns the index of the last of equal numbers
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def top_kernel(x_ptr, value_ptr, place_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offsets, mask=offsets < cols, other=-float("inf"))
    top = tl.max(x, axis=0)
    place = tl.max(tl.where(x == top, offsets, -1), axis=0)
    tl.store(value_ptr + row, top)
    tl.store(place_ptr + row, place.to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        values = x.new_empty(rows, 1)
        places = torch.empty(rows, 1, dtype=torch.int64, device=x.device)
        top_kernel[(rows,)](x, values, places, cols, BLOCK=triton.next_power_of_2(cols))
        return values, places
