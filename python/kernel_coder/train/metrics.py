"""Numbers that describe a step, under TRL's names; NaN where there is none (a mean of nothing is not 0).

Everything that depends on the clock starts with ``time/``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kernel_coder.judge import Outcome, Verdict
from kernel_coder.rollout import Turn
from kernel_coder.train.batch import finite_or_nan
from kernel_coder.train.update import METRIC, UpdateResult


def reward_metrics(
    total: Sequence[float | None], parts: Mapping[str, Sequence[float | None]], group: int, advantages: Tensor
) -> dict[str, float]:
    """Mean and deviation of every reward, and how many groups teach nothing because all their rewards are equal."""
    rewards = finite_or_nan(total)
    grouped = rewards.view(-1, group)
    spread = [row[~row.isnan()] for row in grouped]
    metrics = {
        "reward": _mean(rewards),
        "reward_std": _mean(torch.stack([_std(row) for row in spread])),
        "frac_reward_zero_std": _mean(
            torch.tensor([float(row.numel() == 0 or bool((row == row[0]).all())) for row in spread])
        ),
        "unscored": float(rewards.isnan().sum()),
        "nonfinite_rewards": float(sum(v is not None and not bool(torch.isfinite(torch.tensor(v))) for v in total)),
        "advantages/abs_mean": _mean(advantages.abs()),
    }
    for name, values in parts.items():
        part = finite_or_nan(values)
        metrics[f"rewards/{name}/mean"] = _mean(part)
        metrics[f"rewards/{name}/std"] = float(_std(part[~part.isnan()]))
    return metrics


def verdict_metrics(verdicts: Sequence[Verdict] | None) -> dict[str, float]:
    """The share of every outcome, and of the answers that were judged what they achieved and how long it took."""
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


def completion_metrics(turns: Sequence[Turn]) -> dict[str, float]:
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
    """Means over the tokens that the update computed (not those it could leave out), and the optimiser's numbers."""

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
        "tokens_in_loss": float(result.sums[METRIC["tokens"]]),
    }
    return metrics


class Stopwatch:
    """Seconds spent in each phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def metrics(self, tokens: int) -> dict[str, float]:
        total = time.perf_counter() - self._start
        rollout = self.seconds.get("rollout", 0.0)
        return {
            **{f"time/{name}_s": seconds for name, seconds in self.seconds.items()},
            "time/step_s": total,
            "time/tokens_per_second": tokens / total if total > 0 else 0.0,
            "time/rollout_tokens_per_second": tokens / rollout if rollout > 0 else 0.0,
        }


def _mean(values: Tensor) -> float:
    values = values[~values.isnan()].double()
    return float(values.mean()) if values.numel() else math.nan


def _std(values: Tensor) -> Tensor:
    return values.std() if values.numel() > 1 else torch.zeros((), dtype=torch.float64)
