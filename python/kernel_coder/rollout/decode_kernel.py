"""The Triton kernel of :mod:`kernel_coder.rollout.decode_attention`; importing this module needs triton."""

import triton
import triton.language as tl


@triton.jit
def decode_attention(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    out,
    lengths,
    scale,
    row_stride,
    head_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    count = tl.load(lengths + row) + 1
    group = tl.arange(0, QUERIES)
    inner = tl.arange(0, SIZE)
    place = (row * HEADS + head) * GROUP * SIZE + group[:, None] * SIZE + inner[None, :]
    query = tl.load(queries + place, mask=group[:, None] < GROUP, other=0.0)  # [G, D]
    begin = row * row_stride + head * head_stride
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, SIZE], tl.float32)
    for start in range(0, count, BLOCK):
        token = start + tl.arange(0, BLOCK)
        known = token < count
        key = tl.load(keys + begin + token[None, :] * SIZE + inner[:, None], mask=known[None, :], other=0.0)
        value = tl.load(values + begin + token[:, None] * SIZE + inner[None, :], mask=known[:, None], other=0.0)
        scores = tl.dot(query, key, input_precision="ieee") * scale  # [G, BLOCK]
        scores = tl.where(known[None, :], scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - now[:, None])
        shrink = tl.exp(largest - now)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        largest = now
    tl.store(out + place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=group[:, None] < GROUP)
