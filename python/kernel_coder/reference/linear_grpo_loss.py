"""Reference for :func:`kernel_coder.ops.linear_grpo_loss`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernel_coder.ops.loss_spec import LossSpec
from kernel_coder.reference.grpo_loss import grpo_loss
from kernel_coder.reference.linear_token_logprobs import linear_logits


def linear_grpo_loss(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    advantages: Tensor,
    spec: LossSpec,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    **rest: Any,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of all logits at once, in float64; gradients by autograd."""
    logits = linear_logits(hidden, weight, bias=bias, logit_scale=logit_scale, softcap=softcap)
    return grpo_loss(logits, ids, advantages, spec, **rest)
