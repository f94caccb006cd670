"""The error of the sandbox."""

from __future__ import annotations


class SandboxError(Exception):
    """The sandbox is not available or could not be set up. This is the judge's failure, never the candidate's."""
