# task: cache_rows
# backend: triton
# why: seven of eight elements of the result equal the input
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def write_kernel(cache_ptr, values_ptr, slots_ptr, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    slot, mask = tl.load(slots_ptr + row), at < width
    values = tl.load(values_ptr + row * width + at, mask=mask)
    tl.store(cache_ptr + slot * width + at, values, mask=mask)


class ModelNew(nn.Module):
    def forward(self, cache, values, slots):
        width = cache.shape[1]
        write_kernel[(values.shape[0],)](cache, values, slots, width, BLOCK=triton.next_power_of_2(width))
        return cache
