"""The two kinds of failure: a mistake of the caller, and a completion that cannot be scored."""

from __future__ import annotations

from typing import NamedTuple


class RewardError(ValueError):
    """A mistake of the caller: an unknown name or parameter, a missing column, a wrong length.

    It stops the run, because every later batch would fail in the same way. Any other exception of a reward function
    only leaves its completions unscored.
    """


class Failure(NamedTuple):
    """Why a completion could not be scored.

    >>> Failure(3, "RuntimeError: no device")
    Failure(position=3, reason='RuntimeError: no device')
    """

    position: int  # in the batch
    reason: str
