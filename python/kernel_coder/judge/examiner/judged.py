"""The exception that ends an examination."""

from __future__ import annotations

from kernel_coder.judge.feedback import NO_MESSAGE
from kernel_coder.judge.verdict import Outcome


class Judged(Exception):
    """Raised when the candidate is found not to be correct. Nothing more is asked of it."""

    def __init__(self, outcome: Outcome, reason: str, told: str = "", compiled: bool = True) -> None:
        """
        Args:
            outcome: the outcome of the verdict.
            reason: the reason of the verdict, in one line.
            told: the feedback for the model; if it is empty, the reason.
            compiled: whether the candidate's code was built.
        """
        reason = reason if reason.strip() else NO_MESSAGE  # a verdict needs a reason
        super().__init__(reason)
        self.outcome, self.reason, self.compiled = outcome, reason, compiled
        self.feedback = told if told.strip() else reason
