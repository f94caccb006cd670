"""Records of what the clock has measured."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kernel_coder.judge.examiner.timing_constants import MIN_SHARE, TIMING

Party = Literal["reference", "candidate", "empty", "single"]
"""Purpose of a request. "empty" goes to the reference's Runner and computes nothing; "single" is an empty request of
one call."""


class Costs(NamedTuple):
    """Seconds that a request takes if its calls compute nothing."""

    single_s: float
    """Seconds of a request of one call."""

    copying_s: float
    """Additional seconds for each further call, whose outputs are copied."""

    def of(self, calls: int) -> float:
        """Return the seconds of a request of this many calls.

        >>> Costs(3.0, 0.5).of(1), Costs(3.0, 0.5).of(5)
        (3.0, 5.0)
        """
        return self.single_s + (calls - 1) * self.copying_s


def call_time(taken_s: float, empty_s: float, calls: int) -> float:
    """Return the seconds of one call of a request that took `taken_s`, if an empty request takes `empty_s`.

    >>> call_time(10.0, 2.0, 4), call_time(10.0, 9.9, 1)
    (2.0, 0.5)
    """
    return max(taken_s - empty_s, MIN_SHARE * taken_s) / calls


class Baseline(NamedTuple):
    """Times of the reference while no candidate runs that could slow it down."""

    call_s: float
    """Seconds of a call in the median request."""

    fastest_s: float
    """Seconds of a call in the fastest request."""

    costs: Costs
    """What requests cost by themselves: the least that was measured, because another program can only increase it."""

    measured_at: float
    """``time.monotonic()`` of the measurement."""

    kind: str
    """Kind of the device: cpu or cuda."""

    is_quiet: bool = True
    """Whether no other program used the GPU during the measurement."""

    @property
    def is_fresh(self) -> bool:
        """Whether the measurement may be used for the next candidate too."""
        return self.is_quiet and time.monotonic() - self.measured_at < TIMING[self.kind].baseline_max_age_s


def no_times() -> dict[Party, list[float]]:
    """Return an empty list for each party of a round."""
    return {"reference": [], "candidate": [], "empty": []}


@dataclass
class Rounds:
    """Seconds of the requests in turn, by party. The two requests of one round have the same index."""

    calls: int = 1
    """Number of calls of a request."""

    taken_s: dict[Party, list[float]] = field(default_factory=no_times)
    launching_s: dict[Party, list[float]] = field(default_factory=no_times)
    """Seconds that each request's launches took, if the clock included them; otherwise 0."""


@dataclass
class ReferenceTiming:
    """What is known of the reference's time. It is kept from one candidate of a task to the next."""

    calls: int = 0
    """Number of calls of a request; 0: not known yet."""

    baseline: Baseline | None = None
    costs: Costs | None = None
    """What requests cost by themselves in the last measurement without another program on the GPU."""

    fastest_s: float = math.inf
    """Shortest median time of a call of the reference, among all measurements without another program on the GPU. It
    stays infinite on a CPU."""

    @property
    def has_fresh_baseline(self) -> bool:
        """Whether the last baseline may be used for the next candidate."""
        return self.baseline is not None and self.baseline.is_fresh
