"""How an evaluation can end other than by finishing, and the exit code of each."""

from __future__ import annotations

from kernel_coder.run.errors import EXIT_MISTAKE, EXIT_STOPPED, UsageError

__all__ = ["EXIT_HARNESS", "EXIT_MISTAKE", "EXIT_STOPPED", "HarnessFailed", "ServerFailed", "UsageError"]

EXIT_HARNESS = 3


class ServerFailed(RuntimeError):
    """The server that is asked for answers stopped giving any; what it gave is saved."""


class HarnessFailed(RuntimeError):
    """The judge reached no verdict on any answer."""
