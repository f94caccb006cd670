"""The speedup and how sure it is, from what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernel_coder.judge.examiner.timing_constants import (
    CONFIDENCE,
    DRIFT_S,
    EARLY_S,
    HOST_NOISE,
    RESOLUTION,
    TIMING,
    UNSURE,
)
from kernel_coder.judge.examiner.timing_records import Baseline, Party, Rounds, call_time


class Interval(NamedTuple):
    """A median and its confidence interval."""

    median: float
    low: float
    high: float


def order_of_bound(count: int, confidence: float = CONFIDENCE) -> int:
    """Index of the lower bound of a median's interval in `count` sorted values. It is 0 if even the interval from the
    least to the most value has less than this confidence.

    The number of values below the median is binomial(count, 1/2), so the values at index k and count - 1 - k enclose it
    with probability 1 - 2 P(fewer than k + 1 below). Source: any text on order statistics.

    >>> [order_of_bound(count) for count in (5, 10, 20, 100)]
    [0, 0, 3, 36]
    """
    tail, below = (1 - confidence) / 2, 0.0
    for k in range(count):
        below += math.comb(count, k) * 0.5**count
        if below > tail:
            return max(k - 1, 0)
    return 0


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of independent measurements and its distribution-free confidence interval.

    >>> median_interval([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 5.0])
    Interval(median=1.0, low=0.9, high=5.0)
    """
    if not values:
        raise ValueError("a median needs at least one value; got none")
    ordered = sorted(values)
    k = order_of_bound(len(ordered), confidence)
    return Interval(statistics.median(ordered), ordered[k], ordered[-1 - k])


def noise_of(values: Sequence[float]) -> float:
    """Relative difference between the medians of the even and of the odd measurements; at least RESOLUTION.

    >>> noise_of([1.0, 1.02] * 10), noise_of([1.0, 1.0])
    (0.02, 0.005)
    """
    even, odd = statistics.median(values[::2]), statistics.median(values[1::2] or values)
    return max(RESOLUTION, round(max(even, odd) / min(even, odd) - 1, 12))


def speedup_interval(reference: Sequence[float], candidate: Sequence[float], known: float = 0.0) -> Interval:
    """The speedup from paired times, and its interval.

    The interval of the ratios is widened by the noise of the reference against itself, or by `known`, if that is more.

    Args:
        reference: its times.
        candidate: its times, each measured beside the reference's of the same place.
        known: relative error of the speedup that is known from elsewhere.

    >>> speedup_interval([2.0] * 20, [1.0] * 20)  # doctest: +ELLIPSIS
    Interval(median=2.0, low=1.99..., high=2.0...)
    >>> speedup_interval([2.0] * 20, [1.0] * 20, 0.25)
    Interval(median=2.0, low=1.6, high=2.5)
    """
    ratio = median_interval([mine / other for mine, other in zip(reference, candidate, strict=True)])
    noise = max(noise_of(reference), known)
    return Interval(ratio.median, ratio.low / (1 + noise), ratio.high * (1 + noise))


@dataclass(frozen=True)
class Speedup:
    """What the times of candidate and reference in turn, and of the reference alone, say about the speedup."""

    rounds: Rounds
    before: Baseline
    """The reference alone, before the candidate was there."""

    afterwards: Baseline | None = None
    """The same when the candidate's processes have ended, if that was measured."""

    fastest_s: float = math.inf
    """Shortest median of a call of the reference on a GPU that no other program used, also for other candidates."""

    could_reach_runner: bool = False
    """Whether the candidate's code could reach the Runner in its process (``source_checks.reaches_out``)."""

    # ---- what a request costs by itself

    @property
    def _known_s(self) -> float:
        """Seconds of an empty request, by those before and after the candidate was there."""
        return min(one.costs.of(self.rounds.calls) for one in (self.before, self.afterwards) if one is not None)

    @property
    def empty_s(self) -> float:
        """Seconds of an empty request in turn. A candidate could increase them, so they count up to a limit."""
        return min(self._known_s + DRIFT_S, statistics.median(self.rounds.taken_s["empty"]))

    def calls_s(self, party: Party, empty_s: float) -> list[float]:
        """Seconds of a call in each round, if an empty request takes `empty_s`."""
        return [call_time(one, empty_s, self.rounds.calls) for one in self.rounds.taken_s[party]]

    # ---- the reference

    @property
    def _alone(self) -> list[Baseline]:
        """Times before and afterwards, as far as no other program used the GPU; all of them if one always did."""
        found = [one for one in (self.before, self.afterwards) if one is not None]
        return [one for one in found if one.is_quiet] or found

    def _slowest_s(self, alone_s: float) -> float:
        """Seconds of a call of the reference in turn with the candidate above which it was slowed down, if it takes
        `alone_s` alone. Both times may be off by the noise of a request."""
        device = TIMING[self.before.kind]
        return max(device.slow * alone_s, alone_s + 2 * device.request_noise_s / self.rounds.calls)

    @property
    def is_slow(self) -> bool:
        """Whether the reference surely was slowed down in turn with the candidate. Then another program uses the
        device, or the candidate does while it is not asked. A few slow requests, as processes that start make them, are
        not enough."""
        in_turn_s = median_interval(self.calls_s("reference", self.empty_s)).low
        return in_turn_s > self._slowest_s(min(self.before.call_s, self.fastest_s))

    @property
    def is_sure(self) -> bool:
        """Whether the reference was ever timed while no other program used the GPU."""
        return self.fastest_s < math.inf or self._alone[0].is_quiet

    def _reference_scale(self, in_turn_s: float) -> float:
        """Factor on the reference's times in turn. It is below 1 if the reference was slowed down.

        A reference that was fast before the candidate came, and again when it had ended, counts as the slower of both.
        Without a measurement afterwards, only some requests were slow; the reference then counts as slow as it may be
        without being called slowed down.
        """
        if self.afterwards is None:
            return min(1.0, self._slowest_s(min(self.before.call_s, self.fastest_s)) / in_turn_s)
        both_s = max(one.call_s for one in self._alone)
        return both_s / in_turn_s if in_turn_s > self._slowest_s(both_s) else 1.0

    # ---- the speedup

    def _noise(self, call_s: float) -> float:
        """Relative error of the speedup, since two processes that run the same code differ; `call_s` is the faster
        one's time of a call."""
        device, calls = TIMING[self.before.kind], self.rounds.calls
        launching = self.rounds.launching_s
        late_s = max(statistics.median(launching[party] or [0.0]) for party in ("reference", "candidate"))
        host = HOST_NOISE * min(1.0, late_s / (calls * call_s))
        return host + device.call_noise + (device.request_noise_s / calls + device.call_noise_s) / call_s

    def findings(self) -> dict[str, Any]:
        """Fields of the verdict.

        The interval is that of the times in turn, widened by what is not sure. It holds for what empty requests took in
        turn and for what they took without a candidate. The lower bound also holds

        * for the fastest time that the reference ever had without a candidate;
        * for a candidate that answers early and does not copy its outputs, if its code could do that. On a CPU such a
          candidate is not surely faster at all: it could also save the time that Python takes around each call, and
          that time is not known;
        * below 1, if the reference was never alone on the GPU.
        """
        empty_s = self.empty_s
        references, candidates = self.calls_s("reference", empty_s), self.calls_s("candidate", empty_s)
        reference_s, candidate_s = statistics.median(references), statistics.median(candidates)
        scale, noise = self._reference_scale(reference_s), self._noise(min(reference_s, candidate_s))

        def interval(empty_s: float, saved_s: float = 0.0) -> Interval:
            own = self.calls_s("reference", empty_s)
            return speedup_interval([scale * one for one in own], self.calls_s("candidate", empty_s - saved_s), noise)

        intervals = [interval(empty_s), interval(min(empty_s, self._known_s))]
        lows = [one.low for one in intervals]
        if self.could_reach_runner:
            not_copied_s = (self.rounds.calls - 1) * min(one.costs.copying_s for one in self._alone)
            lows.append(UNSURE if self.before.kind == "cpu" else interval(empty_s, not_copied_s + EARLY_S).low)
        fastest_s = min(self.fastest_s, *(one.fastest_s for one in self._alone))
        low = min(lows) * min(1.0, fastest_s / (scale * reference_s))
        return {
            "speedup": intervals[0].median,
            "speedup_low": low if self.is_sure else min(low, UNSURE),
            "speedup_high": max(one.high for one in intervals),
            "runtime_ms": candidate_s * 1e3,
            "reference_ms": scale * reference_s * 1e3,
            "runtimes_ms": [one * 1e3 for one in candidates],
            "reference_runtimes_ms": [scale * one * 1e3 for one in references],
        }
