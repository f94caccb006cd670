"""Rewards that score the judge's verdict. The column ``verdict`` holds a :class:`kernel_coder.judge.Verdict` or None.

A candidate without a verdict, or with outcome ``harness_failed``, has the reward None, never 0. All other failures are
the candidate's fault; none of them is worth more than a wrong output.
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
    """Return the score of each verdict; None where there is no verdict or it is ``harness_failed``."""
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
    """Return 1 for a candidate that compiled, even if it failed when it ran; 0 if it did not compile or was rejected.

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
    """Return 1 for a correct candidate, else 0.

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
    cap: Annotated[float | None, Field(description="the highest reward; None: no limit")] = 10.0,
    bound: Annotated[
        Literal["lower", "estimate"], Field(description="lower bound or estimate of the speedup")
    ] = "lower",
    **columns: Any,
) -> list[float | None]:
    """Return the speedup of a correct candidate over the reference, ``min(speedup, cap)``; 0 for any other.

    Args:
        prompts: not used.
        completions: only their number is used.
        verdict: the verdicts.
        cap: the highest reward; it keeps one easy task from dominating the others.
        bound: ``"lower"``: the lower bound of the confidence interval, which noise hardly raises. ``"estimate"``: the
            speedup itself, as in the published recipes.
        columns: not used.

    Returns:
        A number for each completion; None also for a correct candidate that was not timed, as in the interpreter.

    Raises:
        RewardError: ``cap`` or ``bound`` is not allowed.

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
    """Return the share of device time that a correct candidate spends in its own kernels; 0 for any other candidate.

    It rewards rewriting the expensive operations rather than a cheap one beside them (Dr. Kernel calls it coverage).
    None also for a correct candidate that was not profiled.

    >>> from kernel_coder.judge import example_verdict
    >>> kernel_share_reward(["?"] * 2, ["x"] * 2, verdict=[example_verdict("correct", kernel_share=0.75), None])
    [0.75, None]
    """
    return scores("kernel_share", completions, verdict, lambda one: one.kernel_share if one.correct else 0.0)


@register_reward("memory")
def memory_reward(
    prompts: Sequence[Any], completions: Sequence[Completion], *, verdict: Verdicts, **columns: Any
) -> list[float | None]:
    """Return ``min(reference / candidate, 1)`` of the GPU memory for a correct candidate; 0 for any other candidate.

    Both amounts count as at least one byte. None also for a correct candidate whose memory was not measured, as without
    a GPU. The candidate's process measures its own memory, so give this reward a small weight.

    >>> from kernel_coder.judge import example_verdict
    >>> lean, fat = (example_verdict("correct", memory_bytes=n, reference_memory_bytes=100) for n in (50, 400))
    >>> memory_reward(["?"] * 3, ["x"] * 3, verdict=[lean, fat, example_verdict("correct")])
    [1.0, 0.25, None]
    """

    def score(one: Verdict) -> float | None:
        if not one.correct:
            return 0.0
        if one.memory_bytes is None or one.reference_memory_bytes is None:
            return None
        return min(max(one.reference_memory_bytes, 1) / max(one.memory_bytes, 1), 1.0)

    return scores("memory", completions, verdict, score)


@register_reward("roofline")
def roofline_reward(
    prompts: Sequence[Any], completions: Sequence[Completion], *, verdict: Verdicts, **columns: Any
) -> list[float | None]:
    """Return the share of the GPU's limit that a correct candidate reaches; 0 for any other candidate.

    None also for a correct candidate that was not timed, or ran on a GPU whose limits are not known.

    >>> from kernel_coder.judge import example_verdict
    >>> roofline_reward(["?"] * 2, ["x"] * 2, verdict=[example_verdict("correct", roofline_share=0.6), None])
    [0.6, None]
    """
    return scores("roofline", completions, verdict, lambda one: one.roofline_share if one.correct else 0.0)


@register_reward("general")
def general_reward(
    prompts: Sequence[Any], completions: Sequence[Completion], *, verdict: Verdicts, **columns: Any
) -> list[float | None]:
    """Return 1 for a correct candidate that also works for other sizes than the task's own; 0 for any other candidate.

    >>> from kernel_coder.judge import example_verdict
    >>> special = example_verdict("correct", specialised="it fails on other sizes")
    >>> general_reward(["?"] * 2, ["x"] * 2, verdict=[example_verdict("correct"), special])
    [1.0, 0.0]
    """
    return scores("general", completions, verdict, lambda one: float(one.correct and one.specialised is None))
