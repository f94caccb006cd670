"""How a run can end other than by finishing, and the exit code of each."""

from __future__ import annotations

from kernel_coder.run.flags import UsageError

__all__ = ["EXIT_DIVERGED", "EXIT_MISTAKE", "EXIT_STOPPED", "StopRequested", "TrainingDiverged", "UsageError"]

EXIT_MISTAKE = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, run it again with --resume


class TrainingDiverged(RuntimeError):
    """Too many updates in a row were refused: not finite, or without a single answer that could be scored."""


class StopRequested(Exception):
    """SIGTERM or SIGINT arrived; raised at the next point where the weights are those of a finished step."""
