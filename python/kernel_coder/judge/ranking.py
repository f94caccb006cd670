"""Which of two verdicts is the better one."""

from __future__ import annotations

from kernel_coder.judge.verdict import Outcome, Verdict

NEARNESS = (
    Outcome.HARNESS_FAILED,
    Outcome.REJECTED,
    Outcome.FORMAT_ERROR,
    Outcome.COMPILE_ERROR,
    Outcome.CRASHED,
    Outcome.OUT_OF_MEMORY,
    Outcome.TIMEOUT,
    Outcome.RUNTIME_ERROR,
    Outcome.WRONG_OUTPUT,
    Outcome.CORRECT,
)
"""Outcomes, from the one that is furthest from a correct answer."""


def rank(verdict: Verdict | None) -> tuple[int, float, float]:
    """What verdicts are sorted by: the outcome, then the lower bound of the speedup, then the share of wrong elements.

    >>> from kernel_coder.judge import example_verdict
    >>> some = [example_verdict(one) for one in ("compile_error", "correct", "rejected", "wrong_output")]
    >>> [one.outcome.value for one in sorted(some, key=rank)]
    ['rejected', 'compile_error', 'wrong_output', 'correct']
    >>> rank(example_verdict("correct", speedup=2.0)) > rank(example_verdict("correct", speedup=1.5))
    True
    """
    if verdict is None:
        return (-1, 0.0, 0.0)
    elements = sum(error.elements for error in verdict.errors)
    wrong = sum(error.mismatches for error in verdict.errors) / elements if elements else 0.0
    return (NEARNESS.index(verdict.outcome), verdict.speedup_low or 0.0, -wrong)
