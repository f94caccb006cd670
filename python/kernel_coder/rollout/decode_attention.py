"""Attention of one new token over a key-value cache whose rows have lengths of their own, as a Triton kernel.

A program reads the keys and values of one row and one key head, up to that row's length: what is behind it costs
nothing. The query heads that share the key head are computed together.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 64
"""Keys that a program looks at at once."""

LEAST_ROWS = 16
"""Rows of a matrix product in Triton; fewer queries are filled up."""

AGREES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Largest relative difference to torch's own attention."""


def attend(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """[B, K, G, D]: softmax(scale query keys^T) values over the first ``lengths + 1`` tokens of each row.

    Args:
        query: [B, K, G, D].
        keys, values: [B, K, T, D], whose tokens lie behind each other.
        lengths: int64 [B], each below T.
        scale: of the scores.
    """
    from kernel_coder.rollout.decode_kernel import decode_attention

    rows, heads, group, size = query.shape
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    decode_attention[(rows, heads)](
        query,
        keys,
        values,
        out,
        lengths,
        scale,
        keys.stride(0),
        keys.stride(1),
        HEADS=heads,
        GROUP=group,
        QUERIES=max(LEAST_ROWS, 1 << (group - 1).bit_length()),
        SIZE=size,
        BLOCK=BLOCK,
        num_warps=4,
        num_stages=3,
    )
    return out


def reference(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """The same by torch."""
    known = torch.arange(keys.shape[2], device=keys.device) <= lengths[:, None]
    return scaled_dot_product_attention(query, keys, values, attn_mask=known[:, None, None], scale=scale)


def why_not(device: torch.device, dtype: torch.dtype, key_heads: int, group: int, size: int) -> str | None:
    """What keeps the kernel from being used; None: nothing, it agrees with torch on a small example."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if size & (size - 1) or size < 16:
        return f"heads of size {size} are not a power of two"
    rng = torch.Generator(device=device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=device).to(dtype)

    room = 2 * BLOCK + 32
    query, keys, values = normal(4, key_heads, group, size), *(normal(4, key_heads, room, size) for _ in range(2))
    lengths = torch.tensor([0, BLOCK - 1, BLOCK, room - 1], device=device)
    try:
        found = attend(query, keys, values, lengths, size**-0.5).double()
    except Exception as error:  # whatever the compiler says
        return f"the kernel does not run: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    wanted = reference(query.double(), keys.double(), values.double(), lengths, size**-0.5)
    apart = float((found - wanted).norm() / wanted.norm())
    return None if apart <= AGREES[dtype] else f"the kernel is off by {apart:.2g}"
