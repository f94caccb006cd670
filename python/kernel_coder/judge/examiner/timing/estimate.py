"""The speedup and how sure it is, from what was measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from kernel_coder.judge.examiner.timing.interval import Interval, median_interval, speedup_interval
from kernel_coder.judge.examiner.timing_constants import EARLY_S, HOST_NOISE, TIMING, UNSURE
from kernel_coder.judge.examiner.timing_records import Baseline, Costs, TimesInTurn


@dataclass(frozen=True)
class Estimate:
    """What the times of candidate and reference in turn, and of the reference alone, say about the speedup."""

    kind: str
    """Kind of device: cpu or cuda."""

    calls: int
    """Calls of a request."""

    input_stride: int
    """Bytes of a call's inputs."""

    times: TimesInTurn
    before: Baseline
    """The reference alone, before the candidate was there."""

    afterwards: Baseline | None = None
    """The same when the candidate's processes have ended, if that was measured."""

    fastest_s: float = math.inf
    """Shortest median of a call of the reference on a GPU that no other program used, also for other candidates."""

    could_reach_runner: bool = False
    """Whether the candidate's code could reach the Runner in its process (``source_checks.reaches_out``)."""

    # ---- the reference

    @property
    def _alone(self) -> list[Baseline]:
        """Times before and afterwards, as far as no other program used the GPU; all of them if one always did."""
        found = [one for one in (self.before, self.afterwards) if one is not None]
        return [one for one in found if one.is_quiet] or found

    @property
    def _known_s(self) -> float:
        """Seconds of a call of the reference, before this candidate was there."""
        return min(self.before.call_s, self.fastest_s)

    def _slowest_s(self, alone_s: float) -> float:
        """Seconds of a call of the reference in turn with the candidate above which it was slowed down, if it takes
        `alone_s` alone. Both times may be off by the noise of a request."""
        device = TIMING[self.kind]
        return max(device.slow * alone_s, alone_s + 2 * device.request_noise_s / self.calls)

    @property
    def is_slow(self) -> bool:
        """Whether the reference surely was slowed down in turn with the candidate. Then another program uses the
        device, or the candidate does while it is not asked. A few slow requests, as processes that start make them, are
        not enough."""
        references = [reference for reference, _ in self._calls_s(self.costs, self.costs)]
        return median_interval(references).low > self._slowest_s(self._known_s)

    @property
    def is_sure(self) -> bool:
        """Whether the reference was ever timed while no other program used the GPU."""
        return self.fastest_s < math.inf or self._alone[0].is_quiet

    @property
    def in_turn_s(self) -> tuple[float, float]:
        """Median seconds of a call in turn, of the reference and of the candidate."""
        references, candidates = zip(*self._calls_s(self.costs, self.costs), strict=True)
        return statistics.median(references), statistics.median(candidates)

    # ---- costs of a request

    @property
    def costs(self) -> Costs:
        """Costs of a request in turn with the candidate.

        A third process uses the GPU then, and from one second to the next the costs differ by tens of microseconds. But
        the candidate could increase them further, so they count up to a limit.
        """
        costs = self._alone[0].costs
        most_s = costs.empty_s + 2 * TIMING[self.kind].request_noise_s
        pings = self.times.pings["reference"] or [costs.empty_s]
        return costs._replace(empty_s=min(most_s, statistics.median(pings)))

    @property
    def least_costs(self) -> Costs:
        """The least costs that were seen on the judge's own processes. Larger ones give larger speedups."""
        known = [one.least for one in (self.before, self.afterwards) if one is not None]
        least = Costs(*map(min, zip(*known, strict=True)))
        return least._replace(empty_s=min([least.empty_s, *self.times.pings["reference"]]))

    @property
    def _cheating_costs(self) -> Costs:
        """Costs of a candidate on a GPU that leaves out the copies of its outputs and answers early, both unseen."""
        return Costs(self.least_costs.empty_s - EARLY_S, 0.0, self.costs.showing_s)

    def _calls_s(self, reference: Costs, candidate: Costs) -> list[tuple[float, float]]:
        """Seconds of a call in each round, of the reference and of the candidate, if their requests cost so much."""
        return [
            (
                reference.call_s(one, self.calls, self.input_stride),
                candidate.call_s(other, self.calls, self.input_stride),
            )
            for one, other in self.times.pairs
        ]

    # ---- the speedup

    def _noise(self, times: list[tuple[float, float]]) -> float:
        """Relative error of the speedup, since two processes that run the same code differ."""
        device = TIMING[self.kind]
        if self.kind == "cpu":
            return device.call_noise
        call_s = [statistics.median(some) for some in zip(*times, strict=True)]
        launching_s = [
            statistics.median(some or [0.0])
            for some in (self.times.launching["reference"], self.times.launching["candidate"])
        ]
        share = max(launching / (self.calls * call) for launching, call in zip(launching_s, call_s, strict=True))
        return HOST_NOISE * min(1.0, share) + device.call_noise + device.request_noise_s / (self.calls * min(call_s))

    def _reference_scale(self, in_turn_s: float) -> float:
        """Factor on the reference's times in turn. It is below 1 if the reference was slowed down.

        A reference that was fast before the candidate came, and again when it had ended, counts as the slower of both.
        Without a measurement afterwards, only some requests were slow; the reference then counts as slow as it may be
        without being called slowed down.
        """
        if self.afterwards is None:
            return min(1.0, self._slowest_s(self._known_s) / in_turn_s)
        both_s = max(one.call_s for one in self._alone)
        return both_s / in_turn_s if in_turn_s > self._slowest_s(both_s) else 1.0

    def findings(self) -> dict[str, Any]:
        """Fields of the verdict.

        The interval is that of the times in turn, widened by what is not sure. It holds for each of three costs of a
        request: in turn with the candidate, the least ever seen, and as seen on the candidate's Runner. The lower bound
        also holds

        * for the fastest time that the reference ever had without a candidate;
        * for a candidate that saves what is subtracted from its time, if its code could do that. On a CPU such a
          candidate is not surely faster at all: it could also save the time that Python takes around each call, and
          that time is not known;
        * below 1, if the reference was never alone on the GPU.
        """
        times = self._calls_s(self.costs, self.costs)
        references, candidates = (list(some) for some in zip(*times, strict=True))
        in_turn_s = statistics.median(references)
        scale, noise = self._reference_scale(in_turn_s), self._noise(times)
        reference_s = scale * in_turn_s
        fastest_s = min(self.fastest_s, *(one.fastest_s for one in self._alone))

        def interval(of_reference: Costs, of_candidate: Costs) -> Interval:
            pairs = self._calls_s(of_reference, of_candidate)
            return speedup_interval([scale * one for one, _ in pairs], [other for _, other in pairs], noise)

        candidates_ping_s = statistics.median(self.times.pings["candidate"] or [self.costs.empty_s])
        intervals = [
            interval(self.costs, self.costs),
            interval(self.least_costs, self.least_costs),
            interval(self.costs, self.costs._replace(empty_s=candidates_ping_s)),
        ]
        lows = [one.low for one in intervals]
        if self.could_reach_runner:
            lows.append(UNSURE if self.kind == "cpu" else interval(self.costs, self._cheating_costs).low)
        low = min(lows) * min(1.0, fastest_s / reference_s)
        return {
            "speedup": intervals[0].median,
            "speedup_low": low if self.is_sure else min(low, UNSURE),
            "speedup_high": max(one.high for one in intervals),
            "runtime_ms": statistics.median(candidates) * 1e3,
            "reference_ms": reference_s * 1e3,
            "runtimes_ms": [candidate * 1e3 for candidate in candidates],
            "reference_runtimes_ms": [scale * reference * 1e3 for reference in references],
        }
