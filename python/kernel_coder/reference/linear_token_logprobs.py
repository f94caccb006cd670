"""Reference for :func:`kernel_coder.ops.linear_token_logprobs`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernel_coder.reference.token_logprobs import token_logprobs


def linear_logits(
    hidden: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> Tensor:
    """Return the logits of a language-model head, in float64."""
    x = hidden.double() @ weight.double().T
    if bias is not None:
        x = x + bias.double()
    x = logit_scale * x
    return x if softcap is None else softcap * (x / softcap).tanh()


def linear_token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the log-probs (and entropies) of all logits at once, in float64 and differentiable."""
    logits = linear_logits(hidden, weight, bias=bias, logit_scale=logit_scale, softcap=softcap)
    return token_logprobs(logits, ids, **rest)
