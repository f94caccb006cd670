"""Errors that end an evaluation, and their exit codes."""

from __future__ import annotations

from kernel_coder.run.errors import EXIT_MISTAKE, EXIT_STOPPED, UsageError

__all__ = ["EXIT_HARNESS", "EXIT_MISTAKE", "EXIT_STOPPED", "HarnessFailed", "ServerFailed", "UsageError"]

EXIT_HARNESS = 3


class ServerFailed(RuntimeError):
    """The server stopped answering. The answers so far are saved."""


class HarnessFailed(RuntimeError):
    """The judge cannot start, or failed on every answer."""
