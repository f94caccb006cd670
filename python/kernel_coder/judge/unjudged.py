"""Verdicts on what never came to a runner."""

from __future__ import annotations

import hashlib

import kernel_coder
from kernel_coder.judge.feedback import bounded
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks import Task


def unjudged(
    task: Task, candidate: str, outcome: Outcome, reason: str, *, backend: str, device: str, feedback: str | None = None
) -> Verdict:
    """A verdict without a run: the answer holds no code, or the judge could not be started.

    >>> task = Task(id="relu", source="example", reference="...")
    >>> unjudged(task, "I do not know.", Outcome.FORMAT_ERROR, "no code", backend="triton", device="cpu").feedback
    'no code'
    """
    return Verdict(
        outcome=outcome,
        compiled=False,
        reason=" ".join(bounded(reason).split()) or outcome.value,
        feedback=bounded(reason if feedback is None else feedback),
        task=task.id,
        task_hash=sha256(task.reference),
        candidate_hash=sha256(candidate),
        backend=backend,
        device=device,
        versions={"kernel_coder": kernel_coder.__version__},
    )


def sha256(text: str) -> str:
    """Of the text in UTF-8, also where it holds what UTF-8 does not allow."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
