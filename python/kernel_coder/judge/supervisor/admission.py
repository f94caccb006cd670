"""The result of checking whether candidates can be judged on a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernel_coder.judge.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Says whether candidates can be judged on a task.

    Attributes:
        task: the task's id.
        task_hash: SHA-256 of the reference's source.
        admitted: null candidates fail on the task, and the reference passes as a candidate. None if the judge failed:
            then nothing is known about the task.
        reason: why the task is not admitted, or how the judge failed; None if it is admitted.
        families: families of inputs that candidates are checked on.
        skipped: the other families, each with the reason.
        hidden_sizes: other sizes that candidates are checked with; None if the task allows none.
        verdict: the verdict on the reference as a candidate; None if there is none.
    """

    task: str
    task_hash: str
    admitted: bool | None
    reason: str | None = None
    families: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict, hash=False)
    hidden_sizes: str | None = None
    verdict: Verdict | None = None
