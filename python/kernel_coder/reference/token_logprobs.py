"""Reference for :func:`kernel_coder.ops.token_logprobs`."""

from __future__ import annotations

import torch
from torch import Tensor


def token_logprobs(
    logits: Tensor,
    ids: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return ``log softmax(logits / temperature)[ids]`` and ``-sum p log p``, in float64 and differentiable."""
    if isinstance(temperature, Tensor) and temperature.dim() == 1:
        temperature = temperature.double()[:, None]
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None], 0.0)
        ids = ids.masked_fill(~mask, 0)
    z = logits.double() / temperature
    chosen = torch.zeros_like(z, dtype=torch.bool).scatter_(1, ids[:, None], True)
    others = z.masked_fill(chosen, -torch.inf).logsumexp(1)
    own = z.gather(1, ids[:, None])[:, 0]
    # Compare the token's logit with the logsumexp of the others only: with the token in the sum, digits would be lost.
    logprobs = -torch.nn.functional.softplus(others - own, threshold=1000)
    log_p = torch.where(chosen, logprobs[:, None], z - torch.logaddexp(others, own)[:, None])
    entropies = -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(1)
    if mask is not None:
        logprobs, entropies = logprobs * mask, entropies * mask
    return logprobs, entropies if entropy else None
