"""Attention of one new token over a key-value cache whose rows have different lengths, as a Triton kernel.

Each program computes one row and one key head. It applies the rotary embedding to the new query and key, writes key and
value into the cache, and reads the row only up to its length. It computes all query heads of the key head together.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 64
"""Number of keys that a program loads at once."""

LEAST_ROWS = 16
"""Smallest number of rows that a Triton matrix product allows; fewer queries are padded to it."""

MAX_ERRORS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Largest relative difference to torch's attention in float64 at which the kernel is used, by dtype."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """Return the attention [B, K, G, D] of the new token over its row, and write its key and value into the cache.

    Args:
        query: [B, K, G, D], without rotary embedding.
        key, value: [B, K, D], the key without rotary embedding.
        cos, sin: [T, D]; at position p, x becomes ``x cos[p] + swapped(x) sin[p]``, with the halves of x swapped.
        keys, values: [B, K, T, D], contiguous in the last two dimensions.
        lengths: int64 [B]: number of tokens in each row of the cache, which is the position of the new token.
        scale: factor of the scores.
    """
    from kernel_coder.rollout.decode_kernel import decode_attention

    rows, heads, group, size = query.shape
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    out = torch.empty_like(query)
    decode_attention[(rows, heads)](
        query,
        key,
        value,
        cos,
        sin,
        keys,
        values,
        lengths,
        out,
        scale,
        keys.stride(0),
        keys.stride(1),
        HEADS=heads,
        GROUP=group,
        QUERIES=max(LEAST_ROWS, 1 << (group - 1).bit_length()),
        SIZE=size,
        BLOCK=BLOCK,
        num_warps=4,
        num_stages=3 if query.dtype.itemsize == 2 else 2,
    )
    return out


def attend_by_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute :func:`attend` with torch. ``mask`` [B, 1, 1, T], added to the scores, is as wide as the tokens to
    read."""
    heads, size = key.shape[1:]
    cos, sin = cos[lengths][:, None], sin[lengths][:, None]  # [B, 1, D]
    query, key = turned(query, cos[:, None], sin[:, None]), turned(key, cos, sin)
    place = lengths[:, None, None, None].expand(-1, heads, 1, size)
    keys.scatter_(2, place, key[:, :, None])
    values.scatter_(2, place, value[:, :, None])
    mask = mask_of(lengths, keys.shape[2], query.dtype) if mask is None else mask
    width = mask.shape[-1]
    # The query heads of a key head are passed as queries of one attention, so keys need not be repeated.
    return scaled_dot_product_attention(query, keys[:, :, :width], values[:, :, :width], attn_mask=mask, scale=scale)


def mask_of(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return [B, 1, 1, width]: 0 for the tokens of a row and the new token, -inf after them."""
    later = torch.arange(width, device=lengths.device) > lengths[:, None]
    return torch.zeros(later.shape, dtype=dtype, device=lengths.device).masked_fill_(later, -torch.inf)[:, None, None]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the rotary embedding: ``x cos + swapped(x) sin``, with the halves of the last dimension swapped."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def why_not(device: torch.device, dtype: torch.dtype, key_heads: int, group: int, size: int) -> str | None:
    """Return the reason why the kernel cannot be used; None if it agrees with torch on a small example."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if size & (size - 1) or size < 16:
        return f"heads of size {size} are not a power of two"
    rng = torch.Generator(device=device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=device).to(dtype)

    room = 2 * BLOCK + 32
    lengths = torch.tensor([0, BLOCK - 1, BLOCK, room - 1], device=device)
    new = [normal(4, key_heads, group, size), normal(4, key_heads, size), normal(4, key_heads, size)]
    tables = [normal(room, size), normal(room, size)]
    caches = [normal(4, key_heads, room, size), normal(4, key_heads, room, size)]
    exact = [tensor.double() for tensor in (*new, *tables, *caches)]
    wanted = attend_by_torch(*exact, lengths, size**-0.5)  # type: ignore[call-arg, arg-type]
    try:
        found = attend(*new, *tables, *caches, lengths, size**-0.5)  # type: ignore[call-arg, arg-type]
    except Exception as error:  # compiler errors have many types
        return f"the kernel does not run: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    pairs = zip((found, *caches), (wanted, *exact[5:]), strict=True)
    apart = max(float((one.double() - other).norm() / other.norm()) for one, other in pairs)
    return None if apart <= MAX_ERRORS[dtype] else f"the kernel is off by {apart:.2g}"
