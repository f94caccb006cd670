"""A decoder's forward pass over a key-value cache of fixed size, with the weights of a transformers model.

It calls the layers of transformers' Llama and Qwen2, but computes attention itself, over a cache whose rows have
different lengths. A step needs no data on the host, so a CUDA graph can capture it.

Letters in shapes: B rows, H hidden size, K key heads, G query heads per key head, D head size, T largest number of
tokens of a row, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from kernel_coder.policy.parts import causal_lm
from kernel_coder.rollout.decode_attention import attend, attend_by_torch, mask_of, turned

SUPPORTED = frozenset({"llama", "qwen2"})
"""Values of ``model_type`` that this decoder supports."""

STATIC_ROTARY = frozenset({"default", "linear", "llama3"})
"""Supported types of rotary embeddings: those whose angles depend only on the position."""


def why_unsupported(model: nn.Module) -> str | None:
    """Return the reason why this decoder does not support a model; None if it does."""
    base = causal_lm(model)
    config = base.config
    if config.model_type not in SUPPORTED:
        return f"models of type {config.model_type} are not supported"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "a layer uses sliding-window attention"
    if (kind := base.model.rotary_emb.rope_type) not in STATIC_ROTARY:
        return f"rotary embeddings of type {kind} are not supported"
    if type(base.get_output_embeddings()) is not nn.Linear:
        return "the output head is not an nn.Linear"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """The keys and values of every layer, [B, K, T, D] each."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def rows(self) -> int:
        return self.keys[0].shape[0]

    @property
    def room(self) -> int:
        return self.keys[0].shape[2]

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copies the first ``length`` tokens of the rows ``sources`` into the rows ``targets``."""
        for tensor in (*self.keys, *self.values):
            tensor[targets, :, :length] = tensor[sources, :, :length]


class Decoder:
    """Runs the layers of a Llama or Qwen2 model on new tokens, with a key-value cache.

    Args:
        model: the language model.
        kernel: use the Triton kernel for attention over the cache.
    """

    def __init__(self, model: nn.Module, *, kernel: bool = False) -> None:
        base = causal_lm(model)
        config = base.config
        self.kernel = kernel
        self.embed, self.layers, self.norm = base.model.embed_tokens, base.model.layers, base.model.norm
        self.rotary, self.head = base.model.rotary_emb, base.get_output_embeddings()
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale = self.head_dim**-0.5
        self.cos = self.sin = torch.empty(0)

    def bytes_per_token(self) -> int:
        """Return the bytes in the cache for one token of one row."""
        return 2 * len(self.layers) * self.key_heads * self.head_dim * self.head.weight.element_size()

    def new_cache(self, rows: int, room: int) -> Cache:
        """Makes a cache, and tables of the rotary angles for its positions."""
        weight = self.head.weight
        positions = torch.arange(room, device=weight.device)[None]
        cos, sin = (table[0] for table in self.rotary(weight[:1], positions))  # [T, D]
        half = self.head_dim // 2
        # transformers computes x cos + rotate_half(x) sin; rotate_half swaps the halves and negates the new first half.
        # Here the sign is in the table, so that the halves need only be swapped.
        self.cos, self.sin = cos, torch.cat([-sin[:, :half], sin[:, half:]], dim=1)
        shape = (rows, self.key_heads, room, self.head_dim)
        keys, values = (tuple(weight.new_zeros(shape) for _ in self.layers) for _ in range(2))
        return Cache(keys, values)

    def prefill(self, ids: Tensor, lengths: Tensor, cache: Cache, source: Tensor, rows: Tensor) -> Tensor:
        """Fills the cache with prompts; returns the logits [P, V] of the next token of each.

        Args:
            ids: int64 [P, L], padded on the right.
            lengths: int64 [P]: lengths of the prompts.
            cache: receives keys and values. Those of the padding are overwritten before they are read.
            source, rows: int64 [B] each: prompt ``source[i]`` goes into row ``rows[i]``.
        """
        count, width = ids.shape
        x = self.embed(ids)  # [P, L, H]
        cos, sin = self.cos[:width, None], self.sin[:width, None]  # [L, 1, D]
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            query, key, value = self._query_key_value(layer, x)
            query, key, value = (t.transpose(1, 2) for t in (turned(query, cos, sin), turned(key, cos, sin), value))
            keys[rows, :, :width], values[rows, :, :width] = key[source], value[source]
            mixed = scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self.scale, enable_gqa=self.heads != self.key_heads
            )
            x = self._rest(layer, x, mixed.transpose(1, 2).reshape(count, width, -1))
        last = x[torch.arange(count, device=x.device), lengths - 1]
        return self.head(self._norm(self.norm, last))

    def step(self, tokens: Tensor, lengths: Tensor, cache: Cache, width: int) -> Tensor:
        """Adds one token to every row; returns the logits [B, V] of the next.

        Args:
            tokens: int64 [B]; their keys and values are written at ``lengths``.
            lengths: int64 [B]: number of tokens in each row before this step.
            cache: its first B rows are used.
            width: number of tokens of each row that attention reads; no row may be longer after this step.
        """
        count = len(tokens)
        x = self.embed(tokens)  # [B, H]
        mask = None if self.kernel else mask_of(lengths, width, x.dtype)
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            query, key, value = self._query_key_value(layer, x)
            arguments = (
                query.view(count, self.key_heads, -1, self.head_dim),  # [B, K, G, D]
                key,
                value,
                self.cos,
                self.sin,
                keys[:count],
                values[:count],
                lengths,
                self.scale,
            )
            mixed = attend(*arguments) if self.kernel else attend_by_torch(*arguments, mask=mask)
            x = self._rest(layer, x, mixed.reshape(count, -1))
        return self.head(self._norm(self.norm, x))

    def _query_key_value(self, layer: Any, x: Tensor) -> list[Tensor]:
        """Return query, key and value, [..., heads, D] each, without rotary embedding."""
        attention = layer.self_attn
        hidden = self._norm(layer.input_layernorm, x)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return [project(hidden).unflatten(-1, (-1, self.head_dim)) for project in projections]

    def _rest(self, layer: Any, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + layer.self_attn.o_proj(mixed)
        return x + layer.mlp(self._norm(layer.post_attention_layernorm, x))

    def _norm(self, norm: Any, x: Tensor) -> Tensor:
        return rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
