"""Sampling with the trained model itself, through transformers: it needs no copy of the weights and no server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from kernel_coder.rollout.engine import Sampling
from kernel_coder.rollout.types import Turn

COMPACT_BELOW = 0.75
"""Ended answers are removed once at most this share of the batch is in progress, because each removal copies the
cache."""

CACHE_GROWTH = 128
"""Number of tokens by which a full cache grows. Each growth copies the cache, so it should not grow by single
tokens."""


class TransformersEngine:
    """A sampling loop over ``model(...)`` with a key-value cache.

    Prompts are padded on the left. Equal prompts in a row are computed once. Each answer has its own random generator,
    so its random numbers do not depend on the batch; its logits depend on it only by rounding.
    """

    def __init__(self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, batch_size: int | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.eos_ids = end_of_sequence_ids(model, tokenizer)
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.eos_ids)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
    ) -> list[Turn]:
        if len(prompts) != len(seeds):
            raise ValueError(f"every prompt needs a seed; got {len(seeds)} seeds for {len(prompts)} prompts")
        size = self.batch_size or max(len(prompts), 1)
        was_training = self.model.training
        self.model.eval()
        try:
            turns: list[Turn] = []
            for start in range(0, len(prompts), size):
                part = slice(start, start + size)
                turns += self._generate_batch(prompts[part], sampling, seeds[part], poll or (lambda: None))
            return turns
        finally:
            self.model.train(was_training)

    @torch.inference_mode()
    def _generate_batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], poll: Callable[[], None]
    ) -> list[Turn]:
        device = next(self.model.parameters()).device
        unique, repeats = run_lengths(prompts)
        width = max(map(len, unique))
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + list(p) for p in unique], device=device)  # [U, width]
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in unique], device=device)
        cache = growing_cache(self.model.config)
        logits = self._forward(ids, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)  # [U, V]
        if len(unique) < len(prompts):
            index = torch.repeat_interleave(torch.arange(len(unique)), torch.tensor(repeats)).to(device)
            cache.batch_select_indices(index)
            logits, mask = logits[index], mask[index]
        length = mask.sum(1, keepdim=True)  # [B, 1]

        uniforms = torch.stack([uniform_numbers(seed, sampling.max_completion_length) for seed in seeds]).to(device)
        done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        eos = torch.tensor(sorted(self.eos_ids), device=device)
        rows = torch.arange(len(prompts), device=device)  # indices of the answers in the current batch
        shape = (len(prompts), sampling.max_completion_length)
        tokens = torch.full(shape, self.pad_id, device=device)
        logprobs = torch.zeros(shape, device=device)
        for position in range(sampling.max_completion_length):
            poll()
            token, logprob = draw(logits, uniforms[rows, position], sampling)
            tokens[rows, position] = torch.where(done, self.pad_id, token)
            logprobs[rows, position] = logprob
            done = done | torch.isin(token, eos)
            left = int((~done).sum())
            if left == 0 or position + 1 == sampling.max_completion_length:
                break
            if left <= COMPACT_BELOW * len(rows):
                kept = (~done).nonzero()[:, 0]
                cache.batch_select_indices(kept)
                rows, mask, length, token, done = rows[kept], mask[kept], length[kept], token[kept], done[kept]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            logits = self._forward(tokens[rows, position][:, None], mask, length + position, cache)
        return [
            self._turn(prompt, row, row_logprobs)
            for prompt, row, row_logprobs in zip(prompts, tokens.tolist(), logprobs.tolist(), strict=True)
        ]

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _turn(self, prompt: Sequence[int], tokens: list[int], logprobs: list[float]) -> Turn:
        end = next((i + 1 for i, token in enumerate(tokens) if token in self.eos_ids), None)
        kept = tokens[:end]
        return Turn(
            prompt_ids=tuple(prompt),
            completion_ids=tuple(kept),
            logprobs=tuple(logprobs[:end]),
            text=str(self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)),
            finish_reason="length" if end is None else "stop",
        )


class _GrowingLayer(DynamicLayer):
    """A cache layer with spare room, so that a new token needs no copy of all earlier ones."""

    _room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < end or self._room[0].shape[0] != key_states.shape[0]:
            keys, values = (
                new.new_empty((*new.shape[:-2], end + CACHE_GROWTH, new.shape[-1]))
                for new in (key_states, value_states)
            )
            if start and self.keys is not None and self.values is not None:
                keys[..., :start, :], values[..., :start, :] = self.keys, self.values
            self._room = keys, values
        keys, values = self._room
        keys[..., start:end, :], values[..., start:end, :] = key_states, value_states
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._room = None


def growing_cache(config: Any) -> DynamicCache:
    """Return the model's cache, with spare room in the layers that keep every token."""
    cache = DynamicCache(config=config)
    cache.layers = [_GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = _GrowingLayer
    return cache


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the tokens [B] and their log-probs [B], from logits [B, V] and uniforms [B] in [0, 1), by inverting the
    CDF."""
    if sampling.temperature == 0:
        token = logits.argmax(dim=1)
        return token, torch.log_softmax(logits.float(), dim=1).gather(1, token[:, None])[:, 0]
    scores = torch.log_softmax(logits.float() / sampling.temperature, dim=1)  # [B, V]
    probs, order = scores.double().exp(), None
    if sampling.top_k or sampling.top_p < 1:
        probs, order = probs.sort(dim=1, descending=True, stable=True)
        if sampling.top_k:
            probs[:, sampling.top_k :] = 0
        if sampling.top_p < 1:
            before = probs.cumsum(1) - probs  # the first token is always kept
            probs.masked_fill_(before >= sampling.top_p * probs.sum(1, keepdim=True), 0)
    cdf = probs.cumsum(1)
    # right=True skips entries equal to the number, so that no token of probability 0 is drawn.
    place = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True).clamp(max=logits.shape[1] - 1)
    token = place if order is None else order.gather(1, place)
    return token[:, 0], scores.gather(1, token)[:, 0]


def uniform_numbers(seed: int, count: int) -> Tensor:
    """Return random numbers in [0, 1), float64 [count]. They are drawn in float32, so a number times a sum is below the
    sum."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)).double()


def run_lengths(prompts: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[int]]:
    """Groups equal neighbours. Returns the prompt and the length of each group.

    >>> run_lengths([[1], [1], [2]])
    ([[1], [2]], [2, 1])
    """
    unique: list[Sequence[int]] = []
    repeats: list[int] = []
    for prompt in prompts:
        if unique and tuple(unique[-1]) == tuple(prompt):
            repeats[-1] += 1
        else:
            unique.append(prompt)
            repeats.append(1)
    return unique, repeats


def end_of_sequence_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that end an answer: those of the tokenizer and of the model's generation config."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(named if isinstance(named, (list, tuple)) else [named])}
    return frozenset(i for i in ids if i is not None)
