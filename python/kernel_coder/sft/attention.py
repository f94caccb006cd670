"""The decoder over a packed row of examples, and the proof that none of them sees another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder.policy.attention import WITHIN_A_TOKEN, packed
from kernel_coder.policy.model import Policy, causal_lm
from kernel_coder.run.errors import UsageError
from kernel_coder.sft.packing import PackedBatch

SEPARATE = 1e-2
"""Largest relative difference that another neighbour may make; bfloat16 rounds to 4e-3, a real neighbour makes 1e-1."""

StatesOf = Callable[[nn.Module, PackedBatch], Tensor]
"""What :func:`hidden_states` is, or does the same in another way."""


def computing(device: torch.device, bf16: bool) -> torch.autocast:
    """In bfloat16 if so asked. No weight is used twice in a pass, so that its copy is kept by what needs it alone."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)


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
    with packed(policy.model), computing(policy.device, bf16):
        one, two = (hidden_states(policy.model, each)[start:].double() for each in (batch, other))
    if not bool((one - two).norm() <= SEPARATE * one.norm()):
        raise UsageError(
            "this model lets an example see its neighbour in a packed sequence, so it cannot be trained here"
        )
