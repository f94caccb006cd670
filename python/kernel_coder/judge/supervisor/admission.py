"""The result of checking whether candidates can be judged on a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel_coder.judge.supervisor.memory_gate import is_out_of_memory
from kernel_coder.judge.verdict import REFUSED, Outcome, Verdict
from kernel_coder.judge.wire.requests import Prepared
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import Task


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


def admission_of(task: Task, verdict: Verdict, prepared: Prepared | None) -> Admission:
    """Return what the verdict on a reference as its own candidate says of its task.

    Args:
        task: the task.
        verdict: the verdict.
        prepared: what the Examiner reported about the task; None if it did not get that far.
    """
    known: dict[str, Any] = {"task": task.id, "task_hash": sha256_text(task.reference)}
    if prepared is not None:
        known["families"], known["skipped"] = tuple(prepared.families), prepared.skipped
        known["hidden_sizes"] = prepared.hidden_sizes
    if verdict.outcome is not Outcome.HARNESS_FAILED:
        known["verdict"] = verdict
    if verdict.correct:
        return Admission(**known, admitted=True)
    reason = verdict.reason or ""
    if reason.startswith(REFUSED):
        return Admission(**known, admitted=False, reason=reason)
    if is_out_of_memory(verdict):
        return Admission(**known, admitted=False, reason=f"it is too large for this device: {reason}")
    if verdict.outcome is Outcome.HARNESS_FAILED:
        return Admission(**known, admitted=None, reason=reason)
    return Admission(**known, admitted=False, reason=f"the reference itself does not pass: {reason}")
