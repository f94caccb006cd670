"""Errors inside the Supervisor. None of them leaves the judge: each becomes a verdict."""

from __future__ import annotations


class HarnessError(Exception):
    """The judge itself failed, so nothing is known about the candidate."""


class ExaminerLost(HarnessError):
    """The Examiner died, hung or ran out of memory, or the reference failed while it was timed. A candidate might
    cause this."""


class TaskRefused(Exception):
    """No candidate can be judged on this task. The text is the reason."""
