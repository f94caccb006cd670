"""Computes the speedup and its confidence interval from the measured times."""

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
    MAX_SCATTER,
    RESOLUTION,
    SETTLED_SHARE,
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
    """Return the index of the lower bound of a median's confidence interval in `count` sorted values. It is 0 if even
    the interval from the least to the largest value has less than this confidence.

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
    """Return the median of independent measurements and its distribution-free confidence interval.

    >>> median_interval([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 5.0])
    Interval(median=1.0, low=0.9, high=5.0)
    """
    if not values:
        raise ValueError("a median needs at least one value; got none")
    ordered = sorted(values)
    k = order_of_bound(len(ordered), confidence)
    return Interval(statistics.median(ordered), ordered[k], ordered[-1 - k])


def noise_of(values: Sequence[float]) -> float:
    """Return the relative difference between the medians of the even and of the odd measurements; at least RESOLUTION.

    >>> noise_of([1.0, 1.02] * 10), noise_of([1.0, 1.0])
    (0.02, 0.005)
    """
    even, odd = statistics.median(values[::2]), statistics.median(values[1::2] or values)
    return max(RESOLUTION, round(max(even, odd) / min(even, odd) - 1, 12))


def speedup_interval(reference: Sequence[float], candidate: Sequence[float], known: float = 0.0) -> Interval:
    """Return the speedup from paired times, and its confidence interval.

    The interval of the ratios is widened by the noise of the reference's own times, or by `known` if that is more.

    Args:
        reference: times of the reference.
        candidate: times of the candidate, each from the same round as the reference's at the same index.
        known: relative error of the speedup that is known already.

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
    """Computes the speedup from the times in turn and the reference's times without a candidate."""

    rounds: Rounds
    before: Baseline
    """Times of the reference before the candidate started."""

    afterwards: Baseline | None = None
    """Times of the reference after the candidate's processes have ended; None if they were not measured."""

    fastest_s: float = math.inf
    """Shortest median time of a call of the reference on a GPU without other programs, for any candidate."""

    could_reach_runner: bool = False
    """Whether the candidate's code could reach the Runner in its process (``source_checks.reaches_out``)."""

    launches: int = 1
    """Number of kernels that a call of the reference launches."""

    # ---- what a request costs by itself

    @property
    def _known_s(self) -> float:
        """Seconds of an empty request without a candidate."""
        return min(one.costs.of(self.rounds.calls) for one in (self.before, self.afterwards) if one is not None)

    @property
    def empty_s(self) -> float:
        """Seconds of an empty request in turn. A candidate could increase them, so they have an upper limit."""
        return min(self._known_s + DRIFT_S, statistics.median(self.rounds.taken_s["empty"]))

    def calls_s(self, party: Party, empty_s: float) -> list[float]:
        """Return the seconds of a call in each round, if an empty request takes `empty_s`."""
        return [call_time(one, empty_s, self.rounds.calls) for one in self.rounds.taken_s[party]]

    # ---- the reference

    @property
    def _alone(self) -> list[Baseline]:
        """Times of the reference without a candidate in which no other program used the GPU; if there are none, all."""
        found = [one for one in (self.before, self.afterwards) if one is not None]
        return [one for one in found if one.is_quiet] or found

    def _slowest_s(self, alone_s: float) -> float:
        """Return the limit of the reference's time of a call in turn above which it was slowed down, if a call takes
        `alone_s` without a candidate. Both times may be off by the noise of a request."""
        device = TIMING[self.before.kind]
        return max(device.slow * alone_s, alone_s + 2 * device.request_noise_s / self.rounds.calls)

    @property
    def is_slow(self) -> bool:
        """Whether the reference was certainly slowed down in turn with the candidate. Then another program uses the
        device, or the candidate does without being asked to. A few slow requests, caused by processes that start, are
        not enough."""
        in_turn_s = median_interval(self.calls_s("reference", self.empty_s)).low
        return in_turn_s > self._slowest_s(min(self.before.call_s, self.fastest_s))

    @property
    def is_sure(self) -> bool:
        """Whether the reference was ever timed while no other program used the GPU."""
        return self.fastest_s < math.inf or self._alone[0].is_quiet

    def _reference_scale(self, in_turn_s: float) -> float:
        """Return the factor on the reference's times in turn. It is below 1 if the reference was slowed down.

        If the reference was fast before the candidate started and again after it ended, the slower of both times
        counts. Without a measurement afterwards, only some requests were slow. Then the reference's time counts up to
        the limit above which it was slowed down.
        """
        if self.afterwards is None:
            return min(1.0, self._slowest_s(min(self.before.call_s, self.fastest_s)) / in_turn_s)
        both_s = max(one.call_s for one in self._alone)
        return both_s / in_turn_s if in_turn_s > self._slowest_s(both_s) else 1.0

    # ---- the speedup

    @property
    def _in_turn(self) -> tuple[list[float], list[float]]:
        """Seconds of a call of the reference and of the candidate in each round."""
        empty_s = self.empty_s
        return self.calls_s("reference", empty_s), self.calls_s("candidate", empty_s)

    @property
    def _measured(self) -> Interval:
        """The interval of the speedup in the rounds, before it is widened by the noise."""
        return median_interval([mine / other for mine, other in zip(*self._in_turn, strict=True)])

    @property
    def is_settled(self) -> bool:
        """Whether the noise, and not the number of rounds, decides how exact the result is."""
        found, noise = self._measured, self._noise(*map(statistics.median, self._in_turn))
        return found.median <= (1 + SETTLED_SHARE * noise) * found.low

    @property
    def is_scattered(self) -> bool:
        """Whether the lower bound is low only because a few requests were slow. Now and then a request on a GPU takes
        some 0.2 ms longer, and two such requests to the candidate among twelve set the lower bound."""
        found = self._measured
        return found.median > MAX_SCATTER * found.low

    def _noise(self, reference_s: float, candidate_s: float) -> float:
        """Return the relative error of the speedup that comes from differences between two processes that run the same
        code, for calls that take this long.

        The noise of launches counts as a share of the reference's time. A candidate that is faster has fewer launches,
        or shorter ones.
        """
        device, calls = TIMING[self.before.kind], self.rounds.calls
        call_s = min(reference_s, candidate_s)
        launching = self.rounds.launching_s
        late_s = max(statistics.median(launching[party] or [0.0]) for party in ("reference", "candidate"))
        host = HOST_NOISE * min(1.0, late_s / (calls * call_s))
        of_launches = device.launch_noise_s * self.launches / reference_s
        return (
            host
            + device.call_noise
            + device.request_noise_s / (calls * call_s)
            + max(device.call_noise_s / call_s, of_launches)
        )

    def findings(self) -> dict[str, Any]:
        """Return fields of the verdict.

        The interval is that of the times in turn, widened by the noise. It includes the results for both times of an
        empty request: the one in turn and the one without a candidate. The lower bound also includes

        * the fastest time that the reference ever had without a candidate;
        * what a candidate gains that answers early and does not copy its outputs, if its code could do that. On a CPU
          the lower bound of such a candidate stays below 1: it could also save the time that Python takes around each
          call, and that time is not known.

        If the reference was never alone on the GPU, the lower bound stays below 1.
        """
        empty_s, (references, candidates) = self.empty_s, self._in_turn
        reference_s, candidate_s = statistics.median(references), statistics.median(candidates)
        scale, noise = self._reference_scale(reference_s), self._noise(reference_s, candidate_s)

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
