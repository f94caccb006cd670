"""Whether a model may be given packed rows: tried on a small one before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernel_coder.policy.attention import WITHIN_A_TOKEN, packed, packed_inputs
from kernel_coder.policy.model import Policy, causal_lm
from kernel_coder.run.errors import UsageError
from kernel_coder.train.batch import place

CLOSE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
"""Largest relative difference, by the dtype of the computation: rounding adds up over layers, a token that is wrongly
seen or not seen makes more than that."""

PROMPT = (5, 11, 7, 3, 13, 2)
SEQUENCES = ((*PROMPT, 9, 4, 8), (*PROMPT, 6, 1, 12, 10, 3), (7, 7, 2, 9))


@torch.no_grad()
def tried(policy: Policy) -> tuple[Policy, str | None]:
    """The policy with what it can do, and what a person should know about what it cannot."""
    types = set(getattr(causal_lm(policy.model).config, "layer_types", None) or ())
    if strange := sorted(types - WITHIN_A_TOKEN):
        return policy, f"sequences are padded, not packed: this model has layers of type {strange[0]}"
    wanted = [_states(policy, [each])[0] for each in SEQUENCES]
    close = CLOSE[torch.bfloat16 if policy.bf16 else next(policy.model.parameters()).dtype]
    try:
        if not _equal(_states(policy, SEQUENCES), wanted, close):
            return policy, "sequences are padded, not packed: this model would let one see its neighbour"
    except (UsageError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        return policy, f"sequences are padded, not packed: {str(error).splitlines()[0] if str(error) else error!r}"
    policy = replace(policy, can_pack=True)
    if causal_lm(policy.model).config._attn_implementation != "sdpa":
        return policy, None  # what else there is knows no shared prompts
    try:
        same = _equal(_states(policy, SEQUENCES, (PROMPT, PROMPT, SEQUENCES[2])), wanted, close)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        same = False
    return replace(policy, can_share=same), None if same else "prompts of a group are computed again for every answer"


def _states(
    policy: Policy, sequences: Sequence[tuple[int, ...]], beginnings: Sequence[tuple[int, ...]] | None = None
) -> list[Tensor]:
    """The hidden states of each sequence; of a single one from a row of its own, which is not packed."""
    decoder = causal_lm(policy.model).get_decoder()
    with torch.autocast(policy.device.type, torch.bfloat16, enabled=policy.bf16):
        if len(sequences) == 1:
            ids = torch.tensor(sequences, device=policy.device)
            return [decoder(input_ids=ids, use_cache=False).last_hidden_state[0]]
        placed = place(sequences, beginnings, policy.device)
        ids, positions = (torch.tensor(values, device=policy.device) for values in (placed.ids, placed.positions))
        with packed(policy.model):
            states = decoder(**packed_inputs(ids, positions, placed.layout)).last_hidden_state[0]
    return [states[list(places)] for places in placed.places]


def _equal(found: Sequence[Tensor], wanted: Sequence[Tensor], close: float) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(bool((one - other).norm() <= close * other.norm()) for one, other in pairs)
