"""The metrics of a step, under TRL's names. A metric without a value, such as the mean of nothing, is NaN.

Metrics that depend on the clock start with ``time/``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernel_coder.judge import Outcome, Verdict
from kernel_coder.rollout import Rollout, Turn
from kernel_coder.train.batch import finite_or_nan
from kernel_coder.train.groups import Answers, Sampled, bounds_of
from kernel_coder.train.update import METRIC, UpdateResult


def answer_metrics(answers: Answers, advantages: Tensor, max_turns: int) -> dict[str, float]:
    """Return the metrics of rewards, verdicts and lengths. In a conversation ``reward`` is that of the last answer."""
    table = answers.table
    metrics = reward_metrics(table.total, table.parts, answers.group, advantages, answers.bounds)
    metrics |= turn_metrics(answers.rollouts, table.total, max_turns)
    if max_turns > 1:
        metrics["frac_reward_zero_std"] = len(answers.flat()) / len(answers.prompts)
    return {
        **metrics,
        "reward_errors": float(table.num_errors),
        **verdict_metrics(answers.verdicts),
        **completion_metrics(answers.turns),
    }


def resampling_metrics(sampled: Sampled) -> dict[str, float]:
    """Return how often dynamic sampling drew further tasks, and how many groups it replaced."""
    return {
        "resampling/rounds": float(len(sampled.rounds) - 1),
        "resampling/replaced_groups": float(sampled.replaced),
    }


EVALUATION_METRICS = (
    *("unscored", "rewards/", "judge/", "correct_by_turn/", "reward_by_turn/", "turns/"),
    *("completions/mean_length", "completions/clipped_ratio"),
)
"""Beginnings of the metrics, beside ``reward``, that an evaluation logs."""


def evaluation_metrics(answers: Answers, max_turns: int) -> dict[str, float]:
    """Return the metrics of held-out answers, under ``eval/``."""
    found = answer_metrics(answers, torch.zeros(0), max_turns)
    return {
        f"eval/{name}": value
        for name, value in found.items()
        if name == "reward" or name.startswith(EVALUATION_METRICS)
    }


def reward_metrics(
    total: Sequence[float | None],
    parts: Mapping[str, Sequence[float | None]],
    group: int,
    advantages: Tensor,
    bounds: Sequence[int] | None = None,
) -> dict[str, float]:
    """Return the mean and standard deviation of every reward, and the share of groups whose rewards are all equal.

    Args:
        total: total reward of every turn; only the last turns of rollouts are used.
        parts: the terms of the reward, of every turn.
        group: rollouts in a group.
        advantages: of every turn.
        bounds: index of each rollout's first turn, see :func:`~kernel_coder.train.groups.bounds_of`; None: one turn
            each.
    """
    last = range(len(total)) if bounds is None else [end - 1 for end in bounds[1:]]
    rewards = finite_or_nan(total)[list(last)]
    grouped = rewards.view(-1, group)
    spread = [row[~row.isnan()] for row in grouped]
    metrics = {
        "reward": _mean(rewards),
        "reward_std": _mean(torch.stack([_std(row) for row in spread])),
        "frac_reward_zero_std": _mean(
            torch.tensor([float(row.numel() == 0 or bool((row == row[0]).all())) for row in spread])
        ),
        "unscored": float(finite_or_nan(total).isnan().sum()),
        "nonfinite_rewards": float(sum(v is not None and not bool(torch.isfinite(torch.tensor(v))) for v in total)),
        "advantages/abs_mean": _mean(advantages.abs()),
    }
    for name, values in parts.items():
        part = finite_or_nan(values)
        metrics[f"rewards/{name}/mean"] = _mean(part)
        metrics[f"rewards/{name}/std"] = float(_std(part[~part.isnan()]))
    return metrics


def verdict_metrics(verdicts: Sequence[Verdict] | None) -> dict[str, float]:
    """Return the share of every outcome, and speedup, kernel share and duration of the answers that ran."""
    if not verdicts:
        return {}
    share = {outcome: sum(one.outcome is outcome for one in verdicts) / len(verdicts) for outcome in Outcome}
    run = {(one.task_hash, one.candidate_hash): one for one in verdicts if "all" in one.stage_s}
    seconds = torch.tensor([one.stage_s["all"] for one in run.values()], dtype=torch.float64)
    speedups = torch.tensor([one.speedup for one in verdicts if one.speedup is not None], dtype=torch.float64)
    shares = torch.tensor([one.kernel_share for one in verdicts if one.kernel_share is not None], dtype=torch.float64)
    return {
        **{f"judge/{outcome}": value for outcome, value in share.items()},
        "judge/compiled": sum(one.compiled for one in verdicts) / len(verdicts),
        "judge/distinct": float(len(run)),
        "judge/speedup_geomean": float(speedups.log().mean().exp()),
        "judge/kernel_share": _mean(shares),
        "time/verdict_p50_s": float(seconds.quantile(0.5)) if len(run) else math.nan,
        "time/verdict_p95_s": float(seconds.quantile(0.95)) if len(run) else math.nan,
    }


def turn_metrics(rollouts: Sequence[Rollout], total: Sequence[float | None], max_turns: int) -> dict[str, float]:
    """Return the metrics of conversations by turn; empty if there is only one turn.

    ``correct_by_turn/t`` is the share of conversations with a correct answer in their first t turns, among those with
    an answer that could be judged. ``reward_by_turn/t`` is the mean reward of the t-th answers.
    """
    if max_turns == 1:
        return {}
    rewards = finite_or_nan(total)
    bounds = bounds_of(rollouts)
    counts = torch.tensor([len(rollout.turns) for rollout in rollouts], dtype=torch.float64)
    metrics = {"turns/mean": _mean(counts), "turns/out_of_context": 0.0}
    for rollout in rollouts:
        last = rollout.verdicts[-1]
        early = len(rollout.turns) < max_turns and last is not None and last.is_scored and not last.correct
        metrics["turns/out_of_context"] += float(early)
    for t in range(1, max_turns + 1):
        places = [begin + t - 1 for begin, rollout in zip(bounds, rollouts, strict=False) if len(rollout.turns) >= t]
        judged = [[one for one in rollout.verdicts[:t] if one is not None and one.is_scored] for rollout in rollouts]
        solved = [float(any(one.correct for one in some)) for some in judged if some]
        metrics[f"turns/count_{t}"] = float(len(places))
        metrics[f"correct_by_turn/{t}"] = _mean(torch.tensor(solved, dtype=torch.float64))
        metrics[f"reward_by_turn/{t}"] = _mean(rewards[places])
    return metrics


def completion_metrics(turns: Sequence[Turn]) -> dict[str, float]:
    """Lengths of answers and prompts in tokens, and the share of answers that were cut at the length limit."""
    lengths = torch.tensor([len(turn.completion_ids) for turn in turns], dtype=torch.float64)
    cut = torch.tensor([turn.finish_reason == "length" for turn in turns])
    return {
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float(cut.double().mean()),
        "completions/mean_terminated_length": _mean(lengths[~cut]),
        "prompts/max_length": float(max(len(turn.prompt_ids) for turn in turns)),
    }


def update_metrics(result: UpdateResult, updates: int) -> dict[str, float]:
    """Return the optimiser's numbers, and means over the tokens that the updates computed (tokens left out do not
    count)."""

    def per_token(name: str) -> float:
        return float(result.sums[METRIC[name]] / result.sums[METRIC["tokens"]])

    metrics = {
        "loss": float(result.sums[METRIC["loss"]]) / max(updates - result.skipped, 1),
        "grad_norm": _mean(torch.tensor(result.grad_norms)),
        "learning_rate": result.learning_rate,
        "skipped_updates": float(result.skipped),
        "entropy": per_token("entropy"),
        "kl": per_token("kl"),
        "ratio": per_token("ratio"),
        "approx_kl": per_token("approx_kl"),
        "clip_ratio/low_mean": per_token("clipped_low"),
        "clip_ratio/high_mean": per_token("clipped_high"),
        "clip_ratio/region_mean": per_token("clipped_low") + per_token("clipped_high"),
        "sampling/logratio_mean": float(
            result.sums[METRIC["mismatch_logratio"]] / result.sums[METRIC["rollout_tokens"]]
        ),
        "sampling/rejected": per_token("rejected"),
        **mismatch_metrics(result.sums),
        "tokens_in_loss": float(result.sums[METRIC["tokens"]]),
    }
    return metrics


def mismatch_metrics(sums: Tensor) -> dict[str, float]:
    """Return the distance between sampler and trainer, over the tokens whose log-prob the sampler gave.

    With ``rho = exp(old - rollout)`` of a token, ``kl`` is the mean of ``rho - 1 - log rho`` (the k3 estimate of the KL
    from sampler to trainer), ``chi2`` is the mean of ``rho^2`` minus 1, and ``ess`` is the effective sample size as a
    share of the tokens, ``(mean rho)^2 / mean rho^2``.
    """
    tokens = float(sums[METRIC["rollout_tokens"]])
    if not tokens:
        return {name: math.nan for name in ("sampling/kl", "sampling/chi2", "sampling/ess", "sampling/vetoed")}
    log_rho = float(sums[METRIC["mismatch_logratio"]]) / tokens
    rho, rho_sq = float(sums[METRIC["mismatch_ratio"]]) / tokens, float(sums[METRIC["mismatch_ratio_sq"]]) / tokens
    return {
        "sampling/kl": rho - 1 - log_rho,
        "sampling/chi2": rho_sq - 1,
        "sampling/ess": rho**2 / rho_sq if rho_sq > 0 else math.nan,
        "sampling/vetoed": float(sums[METRIC["vetoed_sequences"]] / sums[METRIC["sequences"]]),
    }


def _mean(values: Tensor) -> float:
    values = values[~values.isnan()].double()
    return float(values.mean()) if values.numel() else math.nan


def _std(values: Tensor) -> Tensor:
    return values.std() if values.numel() > 1 else torch.zeros((), dtype=torch.float64)
