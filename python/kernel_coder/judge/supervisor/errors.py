"""Errors inside the Supervisor. The judge turns each of them into a verdict."""

from __future__ import annotations


class HarnessError(Exception):
    """Raised if the judge itself failed, so that nothing is known about the candidate."""


class ExaminerLost(HarnessError):
    """Raised if the Examiner died, hung or ran out of memory, or if the reference failed while it was timed. A
    candidate might cause this."""


class TaskRefused(Exception):
    """Raised if no candidate can be judged on this task. The text is the reason."""
