# task: attention
# backend: triton
# why: running softmax over blocks of keys, one program for each head and block of queries
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, queries, keys, dim, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    head = tl.program_id(0)
    i, d = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, D)
    q_mask = (i[:, None] < queries) & (d[None, :] < dim)
    rows = (head * queries + i[:, None]) * dim + d[None, :]
    q = tl.load(q_ptr + rows, mask=q_mask, other=0.0)
    top = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    result = tl.zeros((M, D), tl.float32)
    for start in range(0, keys, N):
        j = start + tl.arange(0, N)
        columns = (head * keys + j[:, None]) * dim + d[None, :]
        mask = (j[:, None] < keys) & (d[None, :] < dim)
        k = tl.load(k_ptr + columns, mask=mask, other=0.0)
        v = tl.load(v_ptr + columns, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(j[None, :] < keys, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(weights, axis=1)
        result = result * shrink[:, None] + tl.dot(weights, v, input_precision="ieee")
        top = new_top
    tl.store(out_ptr + rows, result / total[:, None], mask=q_mask)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        heads, queries, dim = q.shape
        out = torch.empty_like(q)
        grid = (heads, triton.cdiv(queries, 16))
        block = max(16, triton.next_power_of_2(dim))
        attention_kernel[grid](q, k, v, out, queries, k.shape[1], dim, dim**-0.5, M=16, N=16, D=block)
        return out
