"""Attention within each example of a packed row, for the models of transformers.

A row holds several examples one behind the other, and none may see another. Cutting the row where they meet is exact
and costs what the examples cost alone; a block-diagonal mask of the whole row would cost its square.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from kernel_coder.sft.packing import PackedBatch
from kernel_coder.train.errors import UsageError
from kernel_coder.train.model import Policy, causal_lm

NAME = "kernel_coder_packed"

WITHIN_A_TOKEN = frozenset({"full_attention", "sliding_attention"})
"""Layer types that mix tokens by attention alone, so that keeping attention apart keeps examples apart."""

SEPARATE = 1e-2
"""Largest relative difference that another neighbour may make; bfloat16 rounds to 4e-3, a real neighbour makes 1e-1."""


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, T, d]
    key: Tensor,  # [1, key heads, T, d]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within ``cu_seq_lens_q``; returns [1, T, heads, d]. In the form of an ``AttentionInterface``."""
    if softcap is not None or others.get("s_aux") is not None:
        raise UsageError("packed sequences are not supported for attention with soft-capped scores or sinks")
    window = sliding_window if sliding_window is not None and sliding_window < max_length_q else None
    if query.is_cuda and torch.is_autocast_enabled("cuda"):
        query, key, value = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (query, key, value))
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and not dropout:
        return _flash(query, key, value, cu_seq_lens_q, max_length_q, scaling, window), None
    pieces = []
    ends = cu_seq_lens_q.tolist()
    for start, end in itertools.pairwise(ends):
        if start == end:
            continue
        mask = None if window is None or end - start <= window else _band(end - start, window, query.device)
        pieces.append(
            scaled_dot_product_attention(
                query[:, :, start:end],
                key[:, :, start:end],
                value[:, :, start:end],
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous(), None


def _flash(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, scale: float | None, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:  # torch 2.11 has no grouped heads here
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    query, key, value = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))  # [T, heads, d]
    span = (-1 if window is None else window - 1, 0)
    found = varlen_attn(query, key, value, ends, ends, longest, longest, scale=scale, window_size=span)
    assert isinstance(found, Tensor)
    return found[None]


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """bool [length, length]: a token sees itself and the ``window - 1`` before it."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (distance >= 0) & (distance < window)


AttentionInterface.register(NAME, packed_attention)


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Within, attention is :func:`packed_attention`, if the model was loaded for ``sdpa``.

    ``eager`` and ``flash_attention_*`` stay: transformers finds the examples by their positions, which begin anew.
    """
    base = causal_lm(model)
    before = base.config._attn_implementation
    if before == "sdpa":
        base.set_attn_implementation(NAME)
    try:
        yield
    finally:
        if before == "sdpa":
            base.set_attn_implementation(before)


def hidden_states(model: nn.Module, batch: PackedBatch) -> Tensor:
    """The decoder's output [T, H]. Call it within :func:`packed`."""
    decoder = causal_lm(model).get_decoder()
    return decoder(**model_inputs(batch)).last_hidden_state[0]


def model_inputs(batch: PackedBatch) -> dict[str, Any]:
    return {
        "input_ids": batch.ids[None],
        "position_ids": batch.positions[None],
        "attention_mask": None,
        "use_cache": False,
        "cu_seq_lens_q": batch.cu_seqlens,
        "cu_seq_lens_k": batch.cu_seqlens,
        "max_length_q": batch.longest,
        "max_length_k": batch.longest,
    }


@torch.no_grad()
def check_separation(policy: Policy, batch: PackedBatch, other: PackedBatch, *, bf16: bool = False) -> None:
    """Raises :class:`UsageError` unless the last example of both batches, the same, comes out the same.

    A model with layers that mix tokens in another way than by attention (state spaces, convolutions) would not.
    """
    types = set(getattr(causal_lm(policy.model).config, "layer_types", None) or ())
    if strange := sorted(types - WITHIN_A_TOKEN):
        raise UsageError(
            f"examples cannot be kept apart in a packed sequence by layers of type {strange[0]}, which this model has"
        )
    start = int(batch.cu_seqlens[-2])
    with packed(policy.model), torch.autocast(policy.device.type, torch.bfloat16, enabled=bf16):
        one, two = (hidden_states(policy.model, each)[start:].double() for each in (batch, other))
    if not bool((one - two).norm() <= SEPARATE * one.norm()):
        raise UsageError(
            "this model lets an example see its neighbour in a packed sequence, so it cannot be trained here"
        )
