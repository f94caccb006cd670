"""Tests once, before training, whether a model gives the same results on packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder.policy.attention import PACKABLE_LAYERS, packed, packed_inputs
from kernel_coder.policy.layout import place
from kernel_coder.policy.model import Policy
from kernel_coder.policy.parts import causal_lm
from kernel_coder.run.errors import UsageError

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
"""Largest relative difference of the hidden states, by the dtype of the computation. Rounding errors of all layers stay
below it; a token that sees a wrong neighbour, or misses one of its own, exceeds it."""

PROMPT = (5, 11, 7, 3, 13, 2)
SEQUENCES = ((*PROMPT, 9, 4, 8), (*PROMPT, 6, 1, 12, 10, 3), (7, 7, 2, 9))


@torch.no_grad()
def with_packing(policy: Policy) -> tuple[Policy, str | None]:
    """Return the policy with ``can_pack`` and ``can_share`` set, and a note for the user if one of them is false."""
    types = set(getattr(causal_lm(policy.model).config, "layer_types", None) or ())
    if strange := sorted(types - PACKABLE_LAYERS):
        return policy, f"sequences are padded, not packed: this model has layers of type {strange[0]}"
    wanted = [_states(policy, [each])[0] for each in SEQUENCES]
    tolerance = TOLERANCE[torch.bfloat16 if policy.bf16 else next(policy.model.parameters()).dtype]
    try:
        if not _equal(_states(policy, SEQUENCES), wanted, tolerance):
            return policy, "sequences are padded, not packed: in this model a packed sequence would see its neighbour"
    except (UsageError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        return policy, f"sequences are padded, not packed: {str(error).splitlines()[0] if str(error) else error!r}"
    policy = replace(policy, can_pack=True)
    if causal_lm(policy.model).config._attn_implementation != "sdpa":
        return policy, None  # only our attention, which replaces sdpa, supports shared prompts
    try:
        same = _equal(_states(policy, SEQUENCES, (PROMPT, PROMPT, SEQUENCES[2])), wanted, tolerance)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        same = False
    return replace(policy, can_share=same), None if same else "the prompt of a group is computed again for each answer"


def _states(
    policy: Policy, sequences: Sequence[tuple[int, ...]], beginnings: Sequence[tuple[int, ...]] | None = None
) -> list[Tensor]:
    """Return the hidden states of each sequence. A single sequence is not packed; several are packed into one row."""
    with torch.autocast(policy.device.type, torch.bfloat16, enabled=policy.bf16):
        if len(sequences) == 1:
            ids = torch.tensor(sequences, device=policy.device)
            return [policy.compute(_decode, {"input_ids": ids, "use_cache": False})]
        placed = place(sequences, beginnings, policy.device)
        ids, positions = (torch.tensor(values, device=policy.device) for values in (placed.ids, placed.positions))
        with packed(policy.model):
            states = policy.compute(_decode, packed_inputs(ids, positions, placed.layout))
    return [states[list(places)] for places in placed.places]


def _decode(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    hidden: Tensor = causal_lm(model).get_decoder()(**inputs).last_hidden_state[0]
    return hidden


def _equal(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(bool((one - other).norm() <= tolerance * other.norm()) for one, other in pairs)
