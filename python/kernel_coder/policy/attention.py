"""Attention in a packed row: several sequences one after the other, and prompts that several answers share.

No sequence may attend to another. Computing the attention of each sequence separately is exact and costs as much as the
sequences alone; a mask over the whole row would cost the square of its length. A prompt that several answers share
stands in the row once, before them. Each answer attends to the prompt and to itself, which is all that it would see if
it had its own copy of the prompt.

In 16 bits on a GPU this takes two calls of FlashAttention: one over the answers' own tokens, one over their prompts.
The two softmaxes are combined by their log-sum-exps. The backward pass calls FlashAttention's backward pass twice with
the combined result: given P = exp(S - lse) and D = sum(dO O) of the whole softmax, each call returns its part of the
exact gradient. On other devices and dtypes, and for long sequences, torch's attention computes one sequence after the
other.

Letters of the shape comments: T tokens of the row, P of shared prompts, A of answers to them, S sequences, d head size.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from kernel_coder.policy.layout import Layout, layout_of
from kernel_coder.policy.parts import causal_lm
from kernel_coder.run.errors import UsageError

NAME = "kernel_coder_packed"

PACKABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Layer types in which only the attention mixes tokens, so that separate attention keeps sequences separate."""

FLASH_TOLERANCE = 2e-2
"""Largest relative difference between FlashAttention in 16 bits and torch's attention in float32."""

_log = logging.getLogger(__name__)


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
    layout: Layout | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the causal attention within each sequence, and from answers to their shared prompt.

    It has the signature of transformers' ``AttentionInterface``. ``cu_seq_lens_q`` (int32 [S + 1]) are the starts of
    the sequences, ``max_length_q`` is the length of the longest, and ``layout`` also describes shared prompts. Returns
    [1, T, heads, d].

    Raises:
        UsageError: the model caps its attention scores or has attention sinks, which packed rows do not support.
    """
    if softcap is not None or others.get("s_aux") is not None:
        raise UsageError("packed sequences are not supported for attention with soft-capped scores or sinks")
    longest = max_length_q if layout is None else layout.longest + layout.longest_prompt
    window = sliding_window if sliding_window is not None and sliding_window < longest else None
    if query.is_cuda and torch.is_autocast_enabled("cuda"):
        query, key, value = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (query, key, value))
    fast = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and not dropout
    if layout is None or not layout.prompts:
        if fast and (window is not None or layout is None or not layout.is_long):
            return _flash(query, key, value, cu_seq_lens_q, max_length_q, scaling, window), None
        ends = cu_seq_lens_q.tolist() if layout is None else [0, *(end for _, end, _, _ in layout.spans)]
        spans = [(start, end, 0, 0) for start, end in itertools.pairwise(ends)]
        return attention_by_spans(query, key, value, spans, scaling, dropout, window), None
    if fast and window is None and flash_shares(query.device, query.dtype):
        return shared_flash(query, key, value, layout, scaling), None
    return attention_by_spans(query, key, value, layout.spans, scaling, dropout, window), None


def attention_by_spans(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spans: Sequence[tuple[int, int, int, int]],
    scale: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Return torch's attention, [1, T, heads, d], computed for one span of :class:`Layout` after the other."""
    pieces = []
    for start, end, begin, stop in spans:
        if start == end:
            continue
        keys, values = key[:, :, start:end], value[:, :, start:end]
        if begin < stop:
            keys = torch.cat([key[:, :, begin:stop], keys], dim=2)
            values = torch.cat([value[:, :, begin:stop], values], dim=2)
        plain = begin == stop and (window is None or end - start <= window)
        pieces.append(
            scaled_dot_product_attention(
                query[:, :, start:end],
                keys,
                values,
                attn_mask=None if plain else _band(end - start, stop - begin, window, query.device),
                dropout_p=dropout,
                is_causal=plain,
                scale=scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous()


def _band(length: int, before: int, window: int | None, device: torch.device) -> Tensor:
    """Return a mask, bool [length, before + length]: each token sees itself and the tokens before it, within the
    window."""
    distance = torch.arange(before, before + length, device=device)[:, None] - torch.arange(
        before + length, device=device
    )
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, scale: float | None, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:  # varlen_attn of torch 2.11 requires as many key heads as query heads
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    query, key, value = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))  # [T, heads, d]
    span = (-1 if window is None else window - 1, 0)
    found = varlen_attn(query, key, value, ends, ends, longest, longest, scale=scale, window_size=span)
    assert isinstance(found, Tensor)
    return found[None]


def shared_flash(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None) -> Tensor:
    """Return the attention, [1, T, heads, d], of a row with shared prompts by FlashAttention; see the module."""
    query, key, value = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))  # [T, heads, d]
    found = _SharedFlash.apply(query, key, value, layout, query.shape[-1] ** -0.5 if scale is None else scale)
    return found[None]


class _SharedFlash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
        part = slice(layout.prompts, layout.prompts + layout.answers)
        keys, values = _repeated(query, key, value)
        out, lse, *state = _flash_forward(query, keys, values, layout, scale, own=True)
        cross, cross_lse, *cross_state = _flash_forward(query, keys, values, layout, scale, own=False)
        joined = torch.logaddexp(lse[:, part], cross_lse)  # [heads, A]
        own_share, cross_share = (
            (each - joined).exp().transpose(0, 1)[:, :, None] for each in (lse[:, part], cross_lse)
        )
        out[part] = (out[part] * own_share + cross * cross_share).to(out.dtype)
        lse[:, part] = joined
        ctx.save_for_backward(query, key, value, out, lse, *state[:2], *cross_state[:2])
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse, *states = ctx.saved_tensors
        layout, prompts = ctx.layout, ctx.layout.prompts
        part = slice(prompts, prompts + layout.answers)
        keys, values = _repeated(query, key, value)
        grad = gradients[0].contiguous()
        arguments = (grad, query, keys, values, out, lse, layout, ctx.scale)
        d_query, d_key, d_value = _flash_backward(*arguments, states[:2], own=True)
        more_query, more_key, more_value = _flash_backward(*arguments, states[2:], own=False)
        d_query[part] += more_query
        d_key[:prompts] += more_key
        d_value[:prompts] += more_value
        if keys.shape[1] != key.shape[1]:
            shape = (len(key), key.shape[1], -1, key.shape[2])
            d_key, d_value = (each.view(shape).float().sum(dim=2).to(key.dtype) for each in (d_key, d_value))
        return d_query, d_key, d_value, None, None


def _repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    repeats = query.shape[1] // key.shape[1]
    if repeats == 1:
        return key, value
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)


def _places(layout: Layout, own: bool) -> tuple[slice, slice, tuple[Any, ...]]:
    """Return the queries, the keys, and the starts and longest lengths of both.

    ``own``: every piece of the row attends to itself; otherwise the answers attend to their prompts.
    """
    if own:
        return slice(None), slice(None), (layout.cu_seqlens, layout.cu_seqlens, layout.longest, layout.longest)
    queries = slice(layout.prompts, layout.prompts + layout.answers)
    cut = (layout.cu_answers, layout.cu_prompts, layout.longest_answers, layout.longest_prompt)
    return queries, slice(layout.prompts), cut


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float, *, own: bool
) -> tuple[Tensor, ...]:
    """Return the result, its log-sum-exp [heads, tokens], and two tensors that the backward pass needs."""
    queries, keys, cut = _places(layout, own)
    return torch.ops.aten._flash_attention_forward(
        query[queries], key[keys], value[keys], *cut, 0.0, own, False, scale=scale
    )[:4]


def _flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    layout: Layout,
    scale: float,
    state: Sequence[Tensor],
    *,
    own: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, cut = _places(layout, own)
    return torch.ops.aten._flash_attention_backward(
        grad[queries],
        query[queries],
        key[keys],
        value[keys],
        out[queries],
        lse[:, queries].contiguous(),
        *cut,
        0.0,
        own,
        *state,
        scale=scale,
    )


@functools.cache
def flash_shares(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether :func:`shared_flash` agrees with torch's attention, gradients included, on a small example."""
    layout = layout_of([70, 33], [[5, 64, 130], [40, 1]], [77], device)
    rng = torch.Generator(device=device).manual_seed(0)
    tokens = int(layout.cu_seqlens[-1])
    inputs = [torch.randn(1, heads, tokens, 64, generator=rng, device=device) for heads in (4, 2, 2)]
    weight = torch.randn(1, tokens, 4, 64, generator=rng, device=device)

    def results(by: Any, dtype: torch.dtype) -> list[Tensor]:
        leaves = [each.to(dtype).requires_grad_() for each in inputs]
        found = by(*leaves)
        return [found.detach(), *torch.autograd.grad(found, leaves, weight.to(dtype))]

    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            found = results(lambda q, k, v: shared_flash(q, k, v, layout, None), dtype)
            wanted = results(lambda q, k, v: attention_by_spans(q, k, v, layout.spans), torch.float32)
    except (RuntimeError, TypeError, ValueError) as error:
        _log.warning(
            "FlashAttention does not work for shared prompts, so updates are slower: %s", str(error).splitlines()[0]
        )
        return False
    apart = max(float((f.float() - w).norm() / w.norm()) for f, w in zip(found, wanted, strict=True))
    if apart > FLASH_TOLERANCE:
        _log.warning("FlashAttention of shared prompts is off by %.2g, so it is not used and updates are slower", apart)
    return apart <= FLASH_TOLERANCE


AttentionInterface.register(NAME, packed_attention)


@contextmanager
def packed(model: nn.Module) -> Iterator[None]:
    """Inside this context, a model that was loaded with ``sdpa`` uses :func:`packed_attention`.

    ``eager`` and ``flash_attention_*`` are left as they are: for these transformers finds the sequences itself, by
    their positions, which restart at 0.
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


def packed_inputs(ids: Tensor, positions: Tensor, layout: Layout) -> dict[str, Any]:
    """Return the arguments of the model's forward pass for a packed row; ids and positions are int64 [T]."""
    found = {
        "input_ids": ids[None],
        "position_ids": positions[None],
        "attention_mask": None,
        "use_cache": False,
        "cu_seq_lens_q": layout.cu_seqlens,
        "cu_seq_lens_k": layout.cu_seqlens,
        "max_length_q": layout.longest,
        "max_length_k": layout.longest,
    }
    return found | ({"layout": layout} if layout.prompts or layout.is_long else {})
