"""How a run can end other than by finishing, and the exit code of each."""

from __future__ import annotations

EXIT_MISTAKE = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, run it again with --resume


class UsageError(ValueError):
    """Something the user wrote cannot be done; the message is one sentence that says what and how to mend it."""


class TrainingDiverged(RuntimeError):
    """Too many updates in a row were refused: not finite, or without a single answer that could be scored."""


class StopRequested(Exception):
    """SIGTERM or SIGINT arrived; raised at the next point where the weights are those of a finished step."""
