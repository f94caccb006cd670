"""Rewards on what the judge found out: the column ``verdict`` holds a :class:`kernel_coder.judge.Verdict` or None.

A candidate that was not judged (None), or that the harness failed on, has no reward: None, never 0. Whatever else went
wrong is the candidate's fault, and no fault is worth more than a wrong answer that was honestly computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from kernel_coder.judge import Outcome, Verdict
from kernel_coder.rewards.completions import Completion
from kernel_coder.rewards.errors import RewardError
from kernel_coder.rewards.registry import register_reward

Verdicts = Sequence[Verdict | None]


def scores(
    name: str, completions: Sequence[Completion], verdicts: Verdicts, score: Callable[[Verdict], float | None]
) -> list[float | None]:
    """The score of each verdict; None where there is nothing to score."""
    rewards: list[float | None] = []
    for _, verdict in zip(completions, verdicts, strict=True):
        if verdict is not None and not isinstance(verdict, Verdict):
            raise RewardError(f"reward {name} needs a Verdict or None in the column verdict; got {verdict!r}")
        rewards.append(score(verdict) if verdict is not None and verdict.is_scored else None)
    return rewards


@register_reward("compiles")
def compiles_reward(
    prompts: Sequence[Any], completions: Sequence[Completion], *, verdict: Verdicts, **columns: Any
) -> list[float | None]:
    """1 for a candidate that compiled, whatever happened when it ran; 0 for one that did not, or that was rejected.

    >>> from kernel_coder.judge import example_verdict
    >>> compiles_reward(["?"] * 2, ["x"] * 2, verdict=[example_verdict("wrong_output"), example_verdict("timeout")])
    [1.0, 1.0]
    >>> compiles_reward(["?"] * 2, ["x"] * 2, verdict=[example_verdict("rejected"), example_verdict("harness_failed")])
    [0.0, None]
    """

    def score(one: Verdict) -> float:
        return float(one.compiled and one.outcome is not Outcome.REJECTED)

    return scores("compiles", completions, verdict, score)


@register_reward("correct")
def correct_reward(
    prompts: Sequence[Any], completions: Sequence[Completion], *, verdict: Verdicts, **columns: Any
) -> list[float | None]:
    """1 for a correct candidate, else 0.

    >>> from kernel_coder.judge import example_verdict
    >>> correct_reward(["?"] * 2, ["x"] * 2, verdict=[example_verdict("correct"), example_verdict("crashed")])
    [1.0, 0.0]
    """
    return scores("correct", completions, verdict, lambda one: float(one.correct))


def _check_speedup(cap: float | None, bound: str) -> None:
    if cap is not None and not cap > 0:
        raise RewardError(f"cap must be more than 0, or None for no cap; got {cap}")
    if bound not in ("lower", "estimate"):
        raise RewardError(f"bound must be 'lower' or 'estimate'; got {bound!r}")


@register_reward("speedup", check=_check_speedup)
def speedup_reward(
    prompts: Sequence[Any],
    completions: Sequence[Completion],
    *,
    verdict: Verdicts,
    cap: Annotated[float | None, Field(description="the highest reward; None for none")] = 10.0,
    bound: Annotated[Literal["lower", "estimate"], Field(description="what of the confidence interval")] = "lower",
    **columns: Any,
) -> list[float | None]:
    """How many times faster than the reference a correct candidate is: ``min(speedup, cap)``; 0 for any other.

    Args:
        prompts: not used.
        completions: only their number.
        verdict: the verdicts.
        cap: the highest reward, so that one easy task does not drown the others.
        bound: ``"lower"`` takes the lower bound of the confidence interval, which noise cannot lift; ``"estimate"``
            the speedup itself, as the published recipes do.
        columns: not used.

    Returns:
        A number for each completion; None also where a correct candidate could not be timed, as in every interpreted
        run: this reward then does not apply, and no number is made up.

    Raises:
        RewardError: ``cap`` or ``bound`` out of range.

    >>> from kernel_coder.judge import example_verdict
    >>> fast, untimed = example_verdict("correct", speedup=2.0), example_verdict("correct")
    >>> speedup_reward(["?"] * 3, ["x"] * 3, verdict=[fast, untimed, example_verdict("wrong_output")])
    [1.9, None, 0.0]
    """
    _check_speedup(cap, bound)

    def score(one: Verdict) -> float | None:
        if not one.correct:
            return 0.0
        speedup = one.speedup_low if bound == "lower" else one.speedup
        return speedup if speedup is None or cap is None else min(speedup, cap)

    return scores("speedup", completions, verdict, score)


@register_reward("kernel_share")
def kernel_share_reward(
    prompts: Sequence[Any], completions: Sequence[Completion], *, verdict: Verdicts, **columns: Any
) -> list[float | None]:
    """The part of a correct candidate's device time that its own kernels take; 0 for any other.

    It pays for rewriting what costs time rather than a small operation beside it (Dr. Kernel calls it coverage). None
    also where a correct candidate was not profiled.

    >>> from kernel_coder.judge import example_verdict
    >>> kernel_share_reward(["?"] * 2, ["x"] * 2, verdict=[example_verdict("correct", kernel_share=0.75), None])
    [0.75, None]
    """
    return scores("kernel_share", completions, verdict, lambda one: one.kernel_share if one.correct else 0.0)
