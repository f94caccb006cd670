"""Reference for :func:`kernel_coder.ops.policy_loss`: one sequence at a time, in float64, gradients by autograd."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from kernel_coder.ops.loss_spec import LossSpec


def policy_loss(
    logprobs: Tensor,
    advantages: Tensor,
    spec: LossSpec,
    *,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    entropy: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss, and the metrics by name (without the parts of the loss)."""
    bounds = [0, logprobs.numel()] if cu_seqlens is None else cu_seqlens.tolist()
    keep = torch.ones_like(logprobs, dtype=torch.bool) if mask is None else mask
    total = (logprobs[:0] if entropy is None else logprobs[:0] + entropy[:0]).double().sum()  # 0, with a gradient
    metrics = dict.fromkeys(_METRICS, 0.0)
    for s, (begin, end) in enumerate(itertools.pairwise(bounds)):
        chosen = torch.arange(begin, end)[keep[begin:end]]
        if len(chosen) == 0:
            continue

        def pick(x: Tensor | None, chosen: Tensor = chosen) -> Tensor | None:
            return None if x is None else x[chosen].double()

        logp = logprobs[chosen].double()
        advantage = advantages[chosen] if advantages.numel() == logprobs.numel() else advantages[s].expand(len(chosen))
        tokens = _token_losses(
            spec,
            logp,
            advantage.double(),
            pick(old_logprobs),
            pick(ref_logprobs),
            pick(rollout_logprobs),
            pick(entropy),
            metrics,
        )
        match spec.reduction:
            case "sequence_mean":
                total = total + tokens.mean()
            case "sequence_mean_token_sum":
                total = total + tokens.sum() / spec.length_constant
            case _:
                total = total + tokens.sum()
    if denominator is None:
        counted = {"sum": 1.0, "token_mean": metrics["tokens"]}.get(spec.reduction, metrics["sequences"])
        denominator = max(counted, 1.0)
    return total / denominator, metrics


_METRICS = (
    *("tokens", "sequences", "ratio", "ratio_sq", "clipped_low", "clipped_high", "kl", "entropy"),
    *("logratio", "logratio_sq", "approx_kl", "is_weight", "mismatch_logratio", "mismatch_ratio", "mismatch_ratio_sq"),
    *("rollout_tokens", "rejected", "vetoed_sequences"),
)


def _token_losses(
    spec: LossSpec,
    logp: Tensor,
    A: Tensor,
    old: Tensor | None,
    ref: Tensor | None,
    rollout: Tensor | None,
    entropy: Tensor | None,
    metrics: dict[str, float],
) -> Tensor:
    """Return the losses of the unmasked tokens of one sequence."""
    unscored = torch.zeros_like(A, dtype=torch.bool) if rollout is None else rollout.isnan()
    if spec.ratio_to_rollout and rollout is not None:
        old = torch.where(unscored, logp.detach(), rollout)
    elif old is None:
        old = logp.detach()

    log_ratio = logp - old
    r = _ratio(spec, log_ratio, A)
    surrogate, bounded = _surrogate(spec, r, logp, old, A)
    surrogate = torch.where(A == 0, 0.0, surrogate) + spec.ratio_penalty * log_ratio**2
    bounded = bounded & (A != 0)

    log_rho = torch.zeros_like(A) if rollout is None else torch.where(unscored, 0.0, old - rollout)
    weight = _mismatch_weight(spec, log_rho)
    if spec.missing_rollout == "weight_zero":
        weight = torch.where(unscored, 0.0, weight)
    vetoed = bool((log_rho.exp() < spec.token_veto).any())
    if spec.off_policy_mask_threshold is not None:
        sampler = old if rollout is None else torch.where(unscored, logp, rollout)
        drift = (sampler - logp).detach().mean()
        weight = torch.where((A < 0) & (drift > spec.off_policy_mask_threshold), 0.0, weight)
    if vetoed:
        weight = torch.zeros_like(weight)
    rejected = weight == 0
    loss = torch.where(rejected, 0.0, weight * surrogate)

    kl = torch.zeros_like(A) if ref is None else _kl(spec, logp, ref)
    if spec.beta and not vetoed:
        correction = _clamp(log_ratio, spec.log_ratio_clamp).exp() if spec.use_bias_correction_kl else 1.0
        loss = loss + spec.beta * kl * correction
    if spec.entropy_coef and entropy is not None and not vetoed:
        loss = loss - spec.entropy_coef * entropy

    x = log_ratio.detach()
    lower = x < 0 if spec.surrogate == "gmpo" else r.detach().log() < 0
    sums = dict(
        tokens=torch.ones_like(A),
        ratio=r,
        ratio_sq=r**2,
        clipped_low=bounded & lower & ~rejected,
        clipped_high=bounded & ~lower & ~rejected,
        kl=kl,
        entropy=torch.zeros_like(A) if entropy is None else entropy,
        logratio=x,
        logratio_sq=x**2,
        approx_kl=x.exp() - 1 - x,
        is_weight=weight,
        mismatch_logratio=log_rho,
        mismatch_ratio=log_rho.exp()[~unscored] if rollout is not None else A[:0],
        mismatch_ratio_sq=(2 * log_rho).exp()[~unscored] if rollout is not None else A[:0],
        rollout_tokens=~unscored if rollout is not None else A[:0],
        rejected=rejected,
    )
    for name, values in sums.items():
        metrics[name] += float(values.detach().double().sum())
    metrics["sequences"] += 1
    metrics["vetoed_sequences"] += vetoed
    return loss


def _clamp(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else x.clamp(-bound, bound)


def _ratio(spec: LossSpec, log_ratio: Tensor, A: Tensor) -> Tensor:
    """Return the probability ratio of each token, at the spec's importance sampling level."""
    if spec.surrogate == "gmpo":
        clipped = log_ratio.clamp(-spec.epsilon, spec.epsilon if spec.epsilon_high is None else spec.epsilon_high)
        log_ratio = torch.where(A > 0, torch.minimum(log_ratio, clipped), torch.maximum(log_ratio, clipped))
    elif spec.surrogate == "vespo":
        log_ratio = log_ratio.clamp(-20, 20)
    match spec.importance_sampling_level:
        case "sequence":
            log_ratio = log_ratio.mean().expand_as(A)
        case "sequence_token":
            log_ratio = log_ratio.mean().detach() + log_ratio - log_ratio.detach()
        case "sequence_sum":
            log_ratio = log_ratio.sum().expand_as(A)
    return _clamp(log_ratio, spec.log_ratio_clamp).exp()


def _surrogate(spec: LossSpec, r: Tensor, logp: Tensor, old: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the surrogate loss of each token, and a mask of the tokens where clipping changed it."""
    low, high = spec.epsilon, spec.epsilon if spec.epsilon_high is None else spec.epsilon_high
    nowhere = torch.zeros_like(A, dtype=torch.bool)
    match spec.surrogate:
        case "clip":
            first = r if spec.delta is None else r.clamp(max=spec.delta)
            loss = -torch.minimum(first * A, r.clamp(1 - low, 1 + high) * A)
            if spec.dual_clip is not None:
                loss = torch.where(A < 0, torch.minimum(-spec.dual_clip * A, loss), loss)
            return loss, loss.detach() != (-r * A).detach()
        case "cispo":
            bound = r.detach().clamp(max=high)
            return -bound * A * logp, bound != r.detach()
        case "cispo_two_sided":
            bound = r.detach().clamp(1 - low, 1 + high)
            return -bound * A * logp, bound != r.detach()
        case "gmpo":
            log_ratio = (logp - old).detach()
            return -r * A, torch.where(A > 0, log_ratio > high, log_ratio < -low)
        case "dppo":
            change = (logp.exp() - old.exp()).detach()
            dropped = torch.where(A > 0, change > high, change < -low)
            return torch.where(dropped, 0.0, -r * A), dropped
        case "sapo":
            tau = torch.full_like(A, spec.sapo_temperature_neg).masked_fill(A > 0, spec.sapo_temperature_pos)
            return -4 / tau * torch.sigmoid(tau * (r - 1)) * A, nowhere
        case "vespo":
            w = r.detach().clamp(1e-8, math.exp(20))
            k = torch.full_like(A, spec.vespo_k_neg).masked_fill(A >= 0, spec.vespo_k_pos)
            lam = torch.full_like(A, spec.vespo_lambda_neg).masked_fill(A >= 0, spec.vespo_lambda_pos)
            return -(w**k) * torch.exp(lam * (1 - w)) * A * logp, nowhere
        case "reinforce":
            return -A * logp, nowhere
    raise ValueError(spec.surrogate)


def _mismatch_weight(spec: LossSpec, log_rho: Tensor) -> Tensor:
    rho = log_rho.exp()
    total = log_rho.sum().exp().expand_as(rho)
    mean = log_rho.mean().exp().expand_as(rho)
    high = math.inf if spec.mismatch_max is None else spec.mismatch_max

    def inside(ratio: Tensor) -> Tensor:
        return (ratio >= spec.mismatch_min) & (ratio <= high)

    match spec.mismatch:
        case "token_truncate":
            return rho.clamp(spec.mismatch_min, high)
        case "token_mask":
            return rho * inside(rho)
        case "sequence_truncate":
            return total.clamp(spec.mismatch_min, high)
        case "sequence_mask":
            return total * inside(total)
        case "geometric":
            return rho * inside(mean)
        case "geometric_mask":
            return inside(mean).double()
    return torch.ones_like(rho)


def _kl(spec: LossSpec, logp: Tensor, ref: Tensor) -> Tensor:
    q = _clamp(ref - logp, spec.kl_input_clamp)
    kl = {"k1": -q, "k2": q**2 / 2, "k3": q.exp() - q - 1}[spec.kl_estimator]
    return _clamp(kl, spec.kl_output_clamp)
