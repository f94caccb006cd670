# task: embedding
# backend: triton
# why: looks rows up in the table as it is, with the factor in the kernel
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gather_kernel(ids_ptr, table_ptr, out_ptr, dim, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    place = tl.load(ids_ptr + row)
    x = tl.load(table_ptr + place * dim + offsets, mask=offsets < dim)
    tl.store(out_ptr + row * dim + offsets, x * scale, mask=offsets < dim)


class ModelNew(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)
        self.scaled = None

    def forward(self, ids):

        dim = self.table.weight.shape[1]
        out = self.table.weight.new_empty(*ids.shape, dim)
        gather_kernel[(ids.numel(),)](
            ids.contiguous(), self.table.weight, out, dim, dim**0.5, BLOCK=triton.next_power_of_2(dim)
        )
        return out
