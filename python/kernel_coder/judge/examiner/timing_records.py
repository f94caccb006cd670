"""What the clock has measured, as plain records."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kernel_coder.judge.examiner.timing_constants import MIN_SHARE, SHOWN_BYTES, TIMING

Party = Literal["reference", "candidate"]
"""One of the two that are timed."""


class Rhythm(NamedTuple):
    """How requests are made."""

    calls: int
    """Calls of a request."""

    round_s: float
    """Seconds of a round, about."""


class Costs(NamedTuple):
    """Seconds of a request that its calls have no part in."""

    empty_s: float
    """Of a request that does next to nothing (a ping)."""

    copying_s: float = 0.0
    """To copy the outputs of one call to shared memory."""

    showing_s: float = 0.0
    """To copy one byte of inputs to shared memory."""

    def call_s(self, taken_s: float, calls: int, input_stride: int) -> float:
        """Seconds of one call.

        Args:
            taken_s: seconds of the request.
            calls: calls of the request.
            input_stride: bytes of a call's inputs.

        >>> Costs(empty_s=1.0, copying_s=0.5).call_s(10.0, calls=2, input_stride=0)
        4.0
        """
        shown = max(calls * input_stride - SHOWN_BYTES, 0)
        of_request = self.empty_s + calls * self.copying_s + shown * self.showing_s
        return max(taken_s - of_request, taken_s * MIN_SHARE) / calls


class Baseline(NamedTuple):
    """Times of the reference while no candidate is there that could slow it down."""

    call_s: float
    """Seconds of a call, without the costs of a request; the median of some requests."""

    fastest_s: float
    """The same of the fastest of these requests."""

    costs: Costs
    """The usual costs; the least ones if another program used the GPU."""

    least: Costs
    """The least costs that were seen. Another program can only increase them."""

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


@dataclass
class TimesInTurn:
    """Times of candidate and reference in turn."""

    pairs: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of requests: the reference's and the candidate's of the same round."""

    pings: dict[Party, list[float]] = field(default_factory=lambda: {"reference": [], "candidate": []})
    """Seconds of pings between them."""

    launching: dict[Party, list[float]] = field(default_factory=lambda: {"reference": [], "candidate": []})
    """Seconds that each request's launches took, where the clock did not wait for them."""


@dataclass
class ReferenceTiming:
    """What is known of the reference's time. It is kept from one candidate of a task to the next."""

    rhythm: Rhythm | None = None
    keeps_inputs_back: bool = False
    """Whether inputs are copied to shared memory when the clock runs already."""

    baseline: Baseline | None = None
    fastest_s: float = math.inf
    """Shortest median of a call of the reference, of all times when no other program used the GPU. It stays infinite on
    a CPU."""

    @property
    def has_fresh_baseline(self) -> bool:
        """Whether the reference need not be timed before the next candidate."""
        return self.baseline is not None and self.baseline.is_fresh
