"""Inputs for the tests of losses that start from logits or hidden states."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from kernel_coder import LossSpec, reference
from kernel_coder.ops import LOSS_METRICS, LossOutput
from tolerances import assert_close
from torch import Tensor

#: One spec of each kind: token ratios, sequence ratios, KL, entropy, and each kind of gate.
SPECS = {
    "clip": LossSpec.preset("dapo"),
    "gspo": LossSpec.preset("gspo"),
    "kl and entropy": LossSpec(beta=0.2, entropy_coef=0.1, epsilon_high=0.3),
    "entropy alone": LossSpec(surrogate="reinforce", entropy_coef=0.5),
    "sequence mismatch": LossSpec(mismatch="sequence_truncate", mismatch_min=0.8, mismatch_max=1.2, beta=0.1),
    "geometric, veto": LossSpec(mismatch="geometric", mismatch_min=0.9, mismatch_max=1.1, token_veto=0.5),
    "cispo": LossSpec(surrogate="cispo", epsilon_high=1.3, reduction="token_mean"),
}

#: Slack for random batches in float64, where a sum may nearly cancel by chance. A real mistake is far above 1e-7.
CHANCE = 1e5


def computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def loss_batch(logits: Tensor, lengths: list[int], seed: int = 0) -> dict[str, Any]:
    """Every input of a loss except its logits. The log-probs of the other policies are near those of the logits."""
    rng = torch.Generator().manual_seed(seed)
    tokens, vocab = logits.shape
    ids = torch.randint(0, vocab, (tokens,), generator=rng)
    mask = torch.rand(tokens, generator=rng) < 0.8
    logprobs = reference.token_logprobs(logits, ids)[0].detach()

    def near(scale: float) -> Tensor:
        return (logprobs + scale * torch.randn(tokens, generator=rng, dtype=torch.float64)).to(
            computed_in(logits.dtype)
        )

    return {
        "ids": torch.where(mask, ids, -100),
        "advantages": torch.randn(tokens, generator=rng, dtype=computed_in(logits.dtype)),
        "old_logprobs": near(0.3),
        "ref_logprobs": near(0.5),
        "rollout_logprobs": near(0.2),
        "mask": mask,
        "cu_seqlens": torch.tensor([0, *itertools.accumulate(lengths)]),
    }


def assert_loss_equals_reference(out: LossOutput, loss: Tensor, metrics: dict[str, float], slack: float = 1.0) -> None:
    # The terms of a loss may cancel to almost 0, so its error is measured against the size of its terms, about 1.
    one = loss.new_tensor(1.0)
    assert_close(torch.stack([out.loss.detach(), one.to(out.loss)]), torch.stack([loss.detach(), one]), slack=slack)
    named = dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))
    names = list(metrics)
    assert_close(
        torch.tensor([named[name] for name in names], dtype=torch.float64),
        torch.tensor([metrics[name] for name in names], dtype=torch.float64),
        dtype=out.loss.dtype,
        slack=slack,
    )
