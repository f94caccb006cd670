"""What Kernel Coder's losses are measured against: the same batch, log-probs and losses as others compute them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernel_coder import LossSpec, reference
from side_by_side import module_alone
from torch import Tensor

SPEC = LossSpec.preset("dapo")
SEQUENCES = 16
EPSILON = (SPEC.epsilon, SPEC.epsilon_high)
Pair = tuple[Tensor, Tensor | None]


class Batch:
    """Answers of equal length with one advantage each: what every contender can take."""

    def __init__(self, tokens: int, vocab: int, *, masked: float, zero_advantage: float, off_policy: bool) -> None:
        rng = torch.Generator(device="cuda").manual_seed(1)
        self.tokens, self.vocab, self.length = tokens, vocab, tokens // SEQUENCES
        self.ids = torch.randint(0, vocab, (tokens,), device="cuda", generator=rng)
        self.mask = None if masked == 0 else torch.rand(tokens, device="cuda", generator=rng) >= masked
        self.advantages = torch.randn(SEQUENCES, device="cuda", generator=rng)
        self.advantages[: round(zero_advantage * SEQUENCES)] = 0
        self.by_token = self.advantages.repeat_interleave(self.length)
        self.cu_seqlens = torch.arange(0, tokens + 1, self.length, device="cuda")
        self.noise = 0.1 * torch.randn(tokens, device="cuda", generator=rng)
        self.off_policy = off_policy
        self.old: Tensor | None = None
        self.weights = torch.ones_like(self.by_token) if self.mask is None else self.mask.float()
        self.count = self.weights.sum()

    def set_old(self, logprobs: Tensor) -> None:
        self.old = logprobs + self.noise if self.off_policy else None

    def loss(self, logprobs: Tensor) -> Tensor:
        """The loss as one writes it in torch."""
        ratio = (logprobs - (logprobs.detach() if self.old is None else self.old)).exp()
        clipped = ratio.clamp(1 - EPSILON[0], 1 + EPSILON[1])
        loss = -torch.minimum(ratio * self.by_token, clipped * self.by_token)
        return (loss * self.weights).sum() / self.count

    def exact_gradient(self, logprobs: Tensor) -> Tensor:
        """d loss / d log-prob of the first rows, whose log-probs these are, in float64."""
        rows = len(logprobs)
        leaf = logprobs.double().cpu().requires_grad_()
        loss, _ = reference.policy_loss(
            leaf,
            self.by_token[:rows].double().cpu(),
            SPEC,
            old_logprobs=None if self.old is None else self.old[:rows].double().cpu(),
            mask=None if self.mask is None else self.mask[:rows].cpu(),
            denominator=float(self.count),
        )
        return torch.autograd.grad(loss, leaf)[0].to(logprobs.device)


def eager(logits: Tensor, ids: Tensor) -> Pair:
    log_p = logits.float().log_softmax(-1)
    return log_p.gather(1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def eager_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).gather(1, ids[:, None])[:, 0]


def verl_formula(logits: Tensor, ids: Tensor) -> Pair:
    """log-prob as logit less logsumexp; entropy as logsumexp less the mean logit, in the dtype of the logits."""
    lse = torch.logsumexp(logits, -1)
    entropy = lse - (logits.softmax(-1) * logits).sum(-1)
    return logits.gather(1, ids[:, None])[:, 0] - lse, entropy


def trl_logprobs() -> Callable[[Tensor, Tensor], Pair] | None:
    module = module_alone("trl", "kernels/logprob_entropy.py")
    return None if module is None else module.selective_log_softmax_and_entropy


def trl_chunked() -> Callable[..., tuple[Tensor, ...]] | None:
    module = module_alone("trl", "kernels/chunked_logprob.py", "maybe_gather_lm_head_ctx")
    return None if module is None else module.ChunkedLogProbFunction.apply


class Through(torch.autograd.Function):
    """The identity, whose backward drops the gradient: a leaf would copy it, which is no part of what is measured."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> None:
        return None


def relative(x: Tensor, wanted: Tensor) -> float:
    return float((x.double() - wanted).norm() / wanted.norm())
