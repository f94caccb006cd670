"""The ways in which a run can end other than by finishing, and the exit code of each."""

from __future__ import annotations

EXIT_MISTAKE = 2
EXIT_DIVERGED = 3
EXIT_ENGINE = 4
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, and --resume continues the run


class UsageError(ValueError):
    """The user asked for something impossible. The message is one sentence: what is wrong and how to correct it."""


class TrainingDiverged(RuntimeError):
    """Too many updates in a row were skipped: not finite, or without a single scored answer."""


class EngineFailed(RuntimeError):
    """A process that generates answers failed, or gave log-probs that do not fit the present weights."""


class StopRequested(Exception):
    """SIGTERM or SIGINT arrived. It is raised only while the weights are those of a finished step."""
