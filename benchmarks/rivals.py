"""The batch of the loss benchmarks, and log-probs and losses as other libraries compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from kernel_coder import LossSpec, reference
from side_by_side import module_alone
from torch import Tensor

SPEC = LossSpec.preset("dapo")
SEQUENCES = 16
EPSILON = (SPEC.epsilon, SPEC.epsilon_high or SPEC.epsilon)
CHECKED_ROWS = 64
Pair = tuple[Tensor, Tensor | None]


class Batch:
    """Answers of equal length with one advantage each, a form that every contender supports.

    Old log-probs differ from the present ones by up to 0.15, and by 0.5 for one token in fifty. So some ratios are
    clipped, and none is so close to a bound that rounding decides.
    """

    def __init__(
        self, tokens: int, vocab: int, device: str, *, masked: float, zero_advantage: float, off_policy: bool
    ) -> None:
        rng = torch.Generator(device=device).manual_seed(1)

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(tokens, device=device, generator=rng)

        self.tokens, self.vocab, self.length = tokens, vocab, tokens // SEQUENCES
        self.ids = torch.randint(0, vocab, (tokens,), device=device, generator=rng)
        self.mask = None if masked == 0 else uniform(0, 1) >= masked
        self.advantages = torch.randn(SEQUENCES, device=device, generator=rng)
        idle = torch.randperm(SEQUENCES, device=device, generator=rng)[: round(zero_advantage * SEQUENCES)]
        self.advantages[idle] = 0
        self.by_token = self.advantages.repeat_interleave(self.length)
        self.cu_seqlens = torch.arange(0, tokens + 1, self.length, device=device)
        far = 0.5 * uniform(-1, 1).sign()
        self.noise = torch.where(uniform(0, 1) < 0.02, far, uniform(-0.15, 0.15))
        self.off_policy = off_policy
        self.old: Tensor | None = None
        self.weights = torch.ones_like(self.by_token) if self.mask is None else self.mask.float()
        self.count = self.weights.sum()
        rows = torch.arange(0, tokens, max(1, tokens // CHECKED_ROWS), device=device)
        #: Some rows of every sequence, but no last ones.
        self.checked = rows[(rows + 1) % self.length != 0]

    def set_old(self, logprobs: Tensor) -> None:
        self.old = logprobs + self.noise if self.off_policy else None

    def loss(self, logprobs: Tensor) -> Tensor:
        """The loss, written in plain torch."""
        ratio = (logprobs - (logprobs.detach() if self.old is None else self.old)).exp()
        clipped = ratio.clamp(1 - EPSILON[0], 1 + EPSILON[1])
        loss = -torch.minimum(ratio * self.by_token, clipped * self.by_token)
        return (loss * self.weights).sum() / self.count

    def without_last(self) -> Tensor:
        """The weights, 0 for the last token of each sequence."""
        weights = self.weights.clone()
        weights[self.length - 1 :: self.length] = 0
        return weights

    def exact(self, logprobs: Tensor, weights: Tensor) -> tuple[float, Tensor]:
        """Returns the loss of these log-probs and its gradient, in float64."""
        leaf = logprobs.to("cpu", torch.float64, copy=True).requires_grad_()
        loss, _ = reference.policy_loss(
            leaf,
            self.by_token.double().cpu(),
            SPEC,
            old_logprobs=None if self.old is None else self.old.double().cpu(),
            mask=weights.cpu() > 0,
            denominator=float(weights.sum()),
        )
        return float(loss.detach()), torch.autograd.grad(loss, leaf)[0].to(logprobs.device)

    def error_of_loss(self, found: Tensor, exact: float) -> float:
        """Returns the error of the loss, divided by the mean size of the advantages: the loss itself may be near 0."""
        scale = float((self.by_token.abs() * self.weights).sum() / self.count)
        return abs(float(found) - exact) / scale


def eager_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).gather(1, ids[:, None])[:, 0]


def eager(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits.float().log_softmax(-1)
    return log_p.gather(1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def verl_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Returns the log-prob: the logit minus the logsumexp, in the dtype of the logits."""
    return logits.gather(1, ids[:, None])[:, 0] - torch.logsumexp(logits, -1)


def verl(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Also returns the entropy: the logsumexp minus the mean logit."""
    entropy = torch.logsumexp(logits, -1) - (logits.softmax(-1) * logits).sum(-1)
    return verl_logprobs(logits, ids), entropy


def trl(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Pair:
    module = module_alone("trl", "kernels/logprob_entropy.py")
    found: Pair = module.selective_log_softmax_and_entropy(logits, ids, 1.0, mask)
    return found


def trl_chunked() -> Callable[..., tuple[Tensor, ...]]:
    module: Any = module_alone("trl", "kernels/chunked_logprob.py", "maybe_gather_lm_head_ctx")
    apply: Callable[..., tuple[Tensor, ...]] = module.ChunkedLogProbFunction.apply
    return apply


def liger_logprobs(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Pair:
    """Returns the log-probs of all rows but the last one, which Liger's layout leaves out."""
    from liger_kernel.ops.grpo_loss import fused_selective_log_softmax

    rows = None if mask is None else mask[None, :-1]
    return fused_selective_log_softmax(logits[None], ids[None, :-1], 1.0, rows)[0], None


class Through(torch.autograd.Function):
    """The identity, whose backward pass drops the gradient. A leaf would copy it, and that is not to be measured."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> None:
        return None


def relative(x: Tensor, wanted: Tensor) -> float:
    """Returns ||x - wanted|| / ||wanted||, or ||x|| if ``wanted`` is 0."""
    scale = wanted.double().norm()
    return float((x.double() - wanted).norm() / (scale if scale > 0 else 1))
