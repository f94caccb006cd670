"""The two ways in which scoring goes wrong: the caller's mistake, and a score that cannot be had."""

from __future__ import annotations

from typing import NamedTuple


class RewardError(ValueError):
    """A mistake in how rewards were asked for: an unknown name or parameter, a missing column, a wrong length.

    It stops the run, since every later batch would fail in the same way; whatever else a reward function raises only
    leaves its completions unscored.
    """


class Failure(NamedTuple):
    """Why a completion could not be scored.

    >>> Failure(3, "RuntimeError: no device")
    Failure(position=3, reason='RuntimeError: no device')
    """

    position: int  # in the batch
    reason: str
