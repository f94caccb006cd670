"""Tests whether a server computes with the trainer's weights: it answers a fixed prompt, and the trainer scores the
answers.

The comparison detects wrong weights, a head that kept its old copy, and log-probs of the wrong kind: those of the
distribution before temperature, or after top-k or top-p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kernel_coder.rollout.engine import Sampling
from kernel_coder.rollout.types import Turn

PROBE = Sampling(max_completion_length=24, temperature=1.7)
"""Temperature 1.7: above 1, rare tokens are drawn too, so that many entries of the head are compared; and with any
value but 1, log-probs after temperature differ from those before it."""

PROBE_SEEDS = (11, 12, 13, 14)
"""The seeds of the answers. Four answers give about a hundred tokens to compare."""

TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.15}
"""Upper limit for the difference of a log-prob, in nats. Measured in float32 on a CPU: 1e-5, and 0.4 with a wrong head.
The values for 16 bits follow from their rounding, 2^-11 and 2^-8, of logits of about 20; they were not measured."""


@torch.no_grad()
def score_turns(
    model: nn.Module, turns: Sequence[Turn], temperature: float, *, bf16: bool = False
) -> list[list[float]]:
    """Return the model's log-probs of the tokens of each answer, at this temperature (0: as at 1)."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    found = []
    try:
        for turn in turns:
            ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]], device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = model(input_ids=ids, use_cache=False).logits[0]  # [L, V]
            start = len(turn.prompt_ids) - 1
            scores = torch.log_softmax(logits[start:-1].float() / (temperature or 1.0), dim=1)
            targets = torch.tensor(turn.completion_ids, device=device)
            found.append(scores.gather(1, targets[:, None])[:, 0].tolist())
    finally:
        model.train(was_training)
    return found


def largest_gap(turns: Sequence[Turn], scores: Sequence[Sequence[float]]) -> float:
    """Return the largest difference between the log-probs of the answers and the scores.

    >>> turn = Turn((1,), (2, 3), (-1.0, -2.0), "", "stop")
    >>> largest_gap([turn], [[-1.0, -2.5]])
    0.5
    """
    pairs = [pair for turn, row in zip(turns, scores, strict=True) for pair in zip(turn.logprobs, row, strict=True)]
    return max(abs(sampled - scored) for sampled, scored in pairs)
