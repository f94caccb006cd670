"""The decoder over a packed row of examples, and a check that no example attends to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder.policy.attention import PACKABLE_LAYERS, packed
from kernel_coder.policy.model import Policy
from kernel_coder.policy.parts import causal_lm
from kernel_coder.run.errors import UsageError
from kernel_coder.sft.packing import PackedBatch

NEIGHBOUR_TOLERANCE = 1e-2
"""Upper limit for the relative difference of an example's hidden states behind two different neighbours. Rounding in
bfloat16 gives 4e-3; an example that attends to its neighbour gives 1e-1."""

StatesOf = Callable[[nn.Module, PackedBatch], Tensor]
"""Type of :func:`hidden_states` and of faster functions with the same result."""


def computing(device: torch.device, bf16: bool) -> torch.autocast:
    """Return an autocast context to bfloat16 if ``bf16``. It does not cache converted weights: a pass uses each only
    once."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)


def hidden_states(model: nn.Module, batch: PackedBatch) -> Tensor:
    """Return the decoder's output [T, H]. Call it inside :func:`~kernel_coder.policy.attention.packed`."""
    decoder = causal_lm(model).get_decoder()
    return decoder(**model_inputs(batch)).last_hidden_state[0]


def model_inputs(batch: PackedBatch) -> dict[str, Any]:
    """Return the arguments of the model's forward pass."""
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
    """Checks that an example does not attend to its neighbour.

    Args:
        policy: the model.
        batch: a row that ends with some example.
        other: a row that ends with the same example behind another neighbour.
        bf16: compute in bfloat16.

    Raises:
        UsageError: the example's hidden states differ. This happens in models with layers that mix tokens in another
            way than by attention, such as state spaces and convolutions.
    """
    types = set(getattr(causal_lm(policy.model).config, "layer_types", None) or ())
    if strange := sorted(types - PACKABLE_LAYERS):
        raise UsageError(
            f"this model has layers of type {strange[0]}, in which an example would see its neighbour in a packed "
            "sequence"
        )
    start = int(batch.cu_seqlens[-2])
    with packed(policy.model), computing(policy.device, bf16):
        one, two = (policy.compute(hidden_states, each)[start:].double() for each in (batch, other))
    if not bool((one - two).norm() <= NEIGHBOUR_TOLERANCE * one.norm()):
        raise UsageError(
            "this model lets an example see its neighbour in a packed sequence, so it cannot be trained here"
        )
