"""Whether candidates can be judged on a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernel_coder.judge.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether candidates can be judged on a task.

    Attributes:
        task: its id.
        task_hash: SHA-256 of the reference's source.
        admitted: null candidates fail on it and the reference itself passes.
        reason: why not; None if it is admitted.
        families: kinds of inputs on which the reference says something.
        skipped: the other kinds, each with the reason.
        hidden_sizes: the second sizes that candidates are checked with; None where the task allows none.
        verdict: of the reference as a candidate; None if it did not come to that.
    """

    task: str
    task_hash: str
    admitted: bool
    reason: str | None = None
    families: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict, hash=False)
    hidden_sizes: str | None = None
    verdict: Verdict | None = None
