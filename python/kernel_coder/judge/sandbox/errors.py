"""The error of the sandbox."""

from __future__ import annotations


class SandboxError(Exception):
    """Raised if the sandbox is unavailable or could not be set up: the judge's failure, never the candidate's."""
