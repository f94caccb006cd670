"""Reference for :func:`kernel_coder.ops.grpo_loss`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernel_coder.ops.loss_spec import LossSpec
from kernel_coder.reference.policy_loss import policy_loss
from kernel_coder.reference.token_logprobs import token_logprobs


def grpo_loss(
    logits: Tensor,
    ids: Tensor,
    advantages: Tensor,
    spec: LossSpec,
    *,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, dict[str, float]]:
    """Return the policy loss of the tokens' log-probs and entropies, in float64; gradients by autograd."""
    logprobs, entropy = token_logprobs(logits, ids, temperature=temperature, mask=mask, entropy=True)
    return policy_loss(logprobs, advantages, spec, mask=mask, entropy=entropy, **rest)
