# task: embedding
# backend: triton
# why: 64-bit indices read in the kernel; the table stays in nn.Embedding
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def embedding_kernel(ids_ptr, table_ptr, out_ptr, dim, scale, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    row = tl.load(ids_ptr + place)
    offsets = tl.arange(0, BLOCK)
    values = tl.load(table_ptr + row * dim + offsets, mask=offsets < dim)
    tl.store(out_ptr + place * dim + offsets, values * scale, mask=offsets < dim)


class ModelNew(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)

    def forward(self, ids):
        dim = self.table.embedding_dim
        out = torch.empty(*ids.shape, dim, device=ids.device)
        embedding_kernel[(ids.numel(),)](ids, self.table.weight, out, dim, dim**0.5, BLOCK=triton.next_power_of_2(dim))
        return out
