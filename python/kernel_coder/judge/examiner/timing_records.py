"""What the clock has measured, as plain records."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kernel_coder.judge.examiner.timing_constants import MIN_SHARE, TIMING

Party = Literal["reference", "candidate", "empty", "single"]
"""What a request is sent for. "empty" goes to the reference's Runner and computes nothing; "single" is an empty request
of one call."""


class Costs(NamedTuple):
    """Seconds that a request takes if its calls compute nothing."""

    single_s: float
    """If it has one call."""

    copying_s: float
    """More for each further call: its inputs are shown and its outputs are copied."""

    def of(self, calls: int) -> float:
        """Of a request of so many calls.

        >>> Costs(3.0, 0.5).of(1), Costs(3.0, 0.5).of(5)
        (3.0, 5.0)
        """
        return self.single_s + (calls - 1) * self.copying_s


def call_time(taken_s: float, empty_s: float, calls: int) -> float:
    """Seconds of one call of a request that took `taken_s`, where an empty one takes `empty_s`.

    >>> call_time(10.0, 2.0, 4), call_time(10.0, 9.9, 1)
    (2.0, 0.5)
    """
    return max(taken_s - empty_s, MIN_SHARE * taken_s) / calls


class Baseline(NamedTuple):
    """Times of the reference while no candidate is there that could slow it down."""

    call_s: float
    """Seconds of a call: the median of some requests."""

    fastest_s: float
    """The same of the fastest of these requests."""

    costs: Costs
    """What requests cost by themselves: the least seen, since another program can only increase it."""

    measured_at: float
    """``time.monotonic()``."""

    kind: str
    """Kind of device: cpu or cuda."""

    is_quiet: bool = True
    """Whether no other program used the GPU at that time."""

    @property
    def is_fresh(self) -> bool:
        """Whether it may be used for the next candidate, too."""
        return self.is_quiet and time.monotonic() - self.measured_at < TIMING[self.kind].baseline_life_s


def no_times() -> dict[Party, list[float]]:
    """An empty list for each party of a round."""
    return {"reference": [], "candidate": [], "empty": []}


@dataclass
class Rounds:
    """Seconds of requests in turn, by party; the reference's and the candidate's of one round have the same place."""

    calls: int = 1
    """Calls of a request."""

    taken_s: dict[Party, list[float]] = field(default_factory=no_times)
    launching_s: dict[Party, list[float]] = field(default_factory=no_times)
    """Seconds that each request's launches took, where the clock did not wait for them."""


@dataclass
class ReferenceTiming:
    """What is known of the reference's time. It is kept from one candidate of a task to the next."""

    calls: int = 0
    """Calls of a request; 0: not known yet."""

    baseline: Baseline | None = None
    costs: Costs | None = None
    """What requests cost by themselves when no other program used the GPU the last time."""

    fastest_s: float = math.inf
    """Shortest median of a call of the reference, of all times when no other program used the GPU. It stays infinite on
    a CPU."""

    @property
    def has_fresh_baseline(self) -> bool:
        """Whether the reference need not be timed before the next candidate."""
        return self.baseline is not None and self.baseline.is_fresh
