"""The Triton kernel of :mod:`kernel_coder.rollout.decode_attention`; importing this module needs triton."""

import triton
import triton.language as tl


@triton.jit
def decode_attention(  # type: ignore[no-untyped-def]
    queries,
    new_keys,
    new_values,
    cos,
    sin,
    keys,
    values,
    lengths,
    out,
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
    length = tl.load(lengths + row)
    group = tl.arange(0, QUERIES)
    inner = tl.arange(0, SIZE)
    other = inner ^ (SIZE // 2)  # for each element, the one with which the rotary embedding pairs it
    turn_cos = tl.load(cos + length * SIZE + inner).to(tl.float32)
    turn_sin = tl.load(sin + length * SIZE + inner).to(tl.float32)
    kept = group[:, None] < GROUP
    place = ((row * HEADS + head) * GROUP + group[:, None]) * SIZE
    query = tl.load(queries + place + inner[None, :], mask=kept, other=0.0).to(tl.float32)
    swapped = tl.load(queries + place + other[None, :], mask=kept, other=0.0).to(tl.float32)
    query = (query * turn_cos[None, :] + swapped * turn_sin[None, :]).to(out.dtype.element_ty)  # [G, D]
    newest = (row * HEADS + head) * SIZE
    key = tl.load(new_keys + newest + inner).to(tl.float32)
    key_swapped = tl.load(new_keys + newest + other).to(tl.float32)
    key = (key * turn_cos + key_swapped * turn_sin).to(out.dtype.element_ty)
    value = tl.load(new_values + newest + inner)
    begin = row * row_stride + head * head_stride
    tl.store(keys + begin + length * SIZE + inner, key)
    tl.store(values + begin + length * SIZE + inner, value)
    # Online softmax: the new token comes from registers, earlier tokens from the cache.
    largest = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
    total = tl.full([QUERIES], 1.0, tl.float32)
    mixed = tl.zeros([QUERIES, SIZE], tl.float32) + value.to(tl.float32)[None, :]
    for start in range(0, length, BLOCK):
        token = start + tl.arange(0, BLOCK)
        known = token < length
        old_key = tl.load(keys + begin + token[None, :] * SIZE + inner[:, None], mask=known[None, :], other=0.0)
        old_value = tl.load(values + begin + token[:, None] * SIZE + inner[None, :], mask=known[:, None], other=0.0)
        scores = tl.dot(query, old_key, input_precision="ieee") * scale  # [G, BLOCK]
        scores = tl.where(known[None, :], scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - now[:, None])
        shrink = tl.exp(largest - now)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(old_value.dtype), old_value, input_precision="ieee")
        largest = now
    tl.store(out + place + inner[None, :], (mixed / total[:, None]).to(out.dtype.element_ty), mask=kept)
