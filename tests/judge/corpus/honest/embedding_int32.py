# task: embedding
# backend: triton
# why: indices are converted to 32 bits first, and elements, not rows, are spread over programs
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def embedding_kernel(ids_ptr, table_ptr, out_ptr, n, scale, DIM: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    rows = tl.load(ids_ptr + offsets // DIM, mask=mask, other=0)
    values = tl.load(table_ptr + rows * DIM + offsets % DIM, mask=mask)
    tl.store(out_ptr + offsets, values * scale, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, ids):
        weight = self.table.weight
        out = weight.new_empty((*ids.shape, weight.shape[1]))
        grid = (triton.cdiv(out.numel(), 256),)
        scale = weight.shape[1] ** 0.5
        embedding_kernel[grid](ids.int(), weight, out, out.numel(), scale, DIM=weight.shape[1], BLOCK=256)
        return out
