"""How much faster a candidate is: its calls and the reference's in turn, through the same protocol, every one checked.

A request is K calls on K inputs that nobody has seen before; the reference may be given those that the candidate was
given before. The clock is the Examiner's: it starts before the request is sent, and stops when random elements of the
outputs have been read back, so that work which was put off is either waited for or missing. What a request costs by
itself is measured on the reference's Runner and taken off both; what it costs on the candidate's says how sure the
result is.

Nobody else may use the device meanwhile, so as little as possible is done then: inputs of several requests, and what
has to come out, are made beforehand in memory of the Examiner's own and copied to where Runners see them one request
at a time; what came out is copied back, and compared afterwards.

On a GPU inputs are copied, and the cache is flushed, when the clock runs already, since a thread of a candidate's may
be looking out for them; and the clock starts when the Runner has put all launches of a request in line behind a gate
(:mod:`kernel_coder.judge.gpu.stream_gate`), so that it says how long the GPU takes.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.examiner.examination import ReferenceFailed
from kernel_coder.judge.examiner.input_families import fill_random, seed_all
from kernel_coder.judge.examiner.source_checks import reaches_out
from kernel_coder.judge.examiner.timing.interval import RESOLUTION, Interval, median_interval, speedup_interval
from kernel_coder.judge.examiner.tolerance import Tolerance
from kernel_coder.judge.gpu.contention import LOADED, load_of
from kernel_coder.judge.gpu.stream_gate import Gate, gate_of, write_later
from kernel_coder.judge.gpu.turns import Turn, alone, shared
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.messages import AFTERWARDS_S, Mode, Say, Status
from kernel_coder.judge.wire.shared_tensors import free_memory, has_much_to_free, tensor_at
from kernel_coder.judge.wire.trees import map_tensors, tensors_of
from kernel_coder.ops.compare import read_comparisons

if TYPE_CHECKING:
    from kernel_coder.judge.examiner.examination import Link, Session

ROUNDS, LEAST_ROUNDS = {"cpu": 32, "cuda": 12}, 10
"""Pairs of requests; fewer only where they take too long, and then no fewer than the second number. (Of twelve, a
median's interval leaves out the least and the most.)"""

TARGET_S = 6e-3
"""Calls of a small kernel are asked for together, at most so many that a request takes about this long."""

MOST_S = 0.1
"""What no request takes longer than, unless one call does. So a slow candidate keeps nobody waiting for long."""

ENOUGH_S, ENOUGH_CALLS = {"cpu": 0.0, "cuda": 0.3e-3}, 20
"""What the calls of a request take together, or as many as that, if there is room for so many beside those of other
requests. What a request costs by itself on a GPU, 0.4 ms, differs by 0.01 ms from one to the next."""

LEAST_CALLS = {"cpu": 64, "cuda": 4}
"""Of a request, however short they are and few are wanted. On a CPU a request waits for a core, and few short calls
would drown in that; a GPU is waited for, and what a request costs by itself differs by microseconds."""

CHUNK_S = 0.3
"""Others are kept from the device for about so long at a time."""

STAGED_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}
"""Inputs and outputs that are kept for requests to come and from requests that were. Those of a request that needs more
stay where the Runners see them, and are made and compared between one request and the next."""

PINGS, PINGS_IN_TURN = 9, 5
"""Requests in which next to nothing is done, for what a request costs by itself; the second with a candidate."""

BASELINE_ROUNDS, ALONE_S = 5, 5.0
"""Requests to the reference without a candidate; fewer, but one, where they take longer than that."""

FRESH_S = {"cpu": 10.0, "cuda": 60.0}
"""For so long what was measured without a candidate is as good for the next one of the task."""

SLOW = {"cpu": 1.7, "cuda": 1.2}
"""By so much may the reference be slower in turn with a candidate than without one before anybody asks why. What counts
for a core is often a thread of one, and half as fast again from one second to the next."""

OFF_S, OFF = {"cpu": 0.0, "cuda": 20e-6}, {"cpu": 0.15, "cuda": 0.01}
"""Medians of requests of two processes that run the same code differ by less on a GPU, and by such a part of the calls'
time besides (benchmarks/results: judge_clock_cuda.csv, judge_itself_cpu.csv). Twice the first number, in a request, is
no slowness yet."""

STRANGE = 10
"""Of so many requests of the candidate's one at least has a call with inputs that are not of the task's own kind. Who
is right on those alone would be correct by what it does in checks, if it knew a timed call."""

COPIES = 5
"""Times that copying is measured."""

EARLY_S = 50e-6
"""By so much who answers while its last kernel still runs could be earlier, and be right when somebody looks."""

CANARIES = 4096
"""Bytes of a request's outputs that are read before the clock stops."""

AWAKE_S = 0.02
"""Waking up takes time that is clocked, so nobody goes to sleep between timed requests that follow soon."""

SHOWN_BYTES, MEASURED_BYTES = 1 << 20, 1 << 28
"""Of inputs: to copy so many is part of an empty request; what more of them take is measured with so many."""

LEAST = 0.05
"""Of a request's time, whatever it is said to cost by itself."""

LEAST_S = 5e-6
"""Of a call, until it is timed."""

AHEAD_S = 0.3e-3
"""For so long for each call the clock waits until its launches are in line. A candidate that waits for the GPU in a
call is in line never, and one that makes hundreds of launches is not in time: from then on its own time counts, too."""

HOST_NOISE, HOST_S = 0.5, 2e-3
"""Two processes that make the same launches differ by up to so much in the time that it takes them, where that counts;
without a gate nobody knows how long it takes, and the second number, in a call, is what is supposed."""

FLUSH_BYTES = 256 << 20
"""More than any L2 cache."""

PIECES, PAUSE_S = 5, 0.03
"""In which a GPU's reference is timed without a candidate, and the most seconds between two: who uses the GPU at times
is not there all the time, or is seen."""

BUSY = 0.2
"""Of the probes before and after these pieces, that may find a GPU shared which is nobody else's: a process that starts
or ends has it for a moment."""

TRIES, QUIET_S, QUIET_POLL_S = 3, 2.0, 0.25
"""To time the reference without a candidate while nobody else uses the GPU; for so long is it put off until somebody
who does is gone, and asked in between. The lives of other candidates are short."""

RESTLESS_S = 60.0
"""Where a GPU was not quiet in that time, for so long nobody waits for it again."""

UNSURE = 1 - RESOLUTION
"""The speedup of whom nobody can be sure of is surely no more."""

TRIES_IN_TURN, SPARE_S = 2, 5.0
"""To time both in turn, if the reference is slow and the candidate has so much more of its life than that takes."""

COMPILE_S = 120.0
"""What torch.compile may take of the reference."""


def least_time_s(written: int, l2_bytes: int, bandwidth: float) -> float:
    """Seconds that writing so many bytes takes at least, if the cache keeps what it can.

    >>> least_time_s(150 * 10**6, 50 * 10**6, 1e12), least_time_s(10, 50, 1e12)
    (9e-05, 0.0)
    """
    return 0.9 * max(written - l2_bytes, 0) / bandwidth


class Expected(NamedTuple):
    """Of a call, and how far from it may be what comes out."""

    outputs: list[Tensor]
    tolerances: Sequence[Tolerance]
    family: str = "own"


class Request(NamedTuple):
    """Of one Runner, and what it has to make of it."""

    link: Link
    calls: int
    staged: Tensor | None  # bytes: inputs of all calls; None: they are in their place
    is_kept: bool  # beside others, so that nothing of it may stay where the next one will be
    expected: list[Expected]  # of each call; empty if nothing is compared
    hashes: Tensor | None  # of the inputs, if the request is the candidate's

    def again(self, link: Link) -> Request:
        """Of another Runner, where nothing is compared."""
        return self._replace(link=link, expected=[], hashes=None)


class Answer(NamedTuple):
    """What came of a request; `request` is None once it is checked."""

    link: Link
    request: Request | None
    taken: float
    launching_s: float  # what it took to put all launches in line; 0.0: they were, when the clock started
    found: Tensor  # bytes: outputs of all calls
    seen: Tensor  # some of them, from before the clock stopped
    hashes: Tensor | None  # of the inputs, afterwards

    def forgotten(self) -> Answer:
        """Without what takes memory."""
        return self._replace(request=None, found=self.seen, hashes=None)


class Start(NamedTuple):
    """Of the clock."""

    at: float  # time.perf_counter()
    asked_at: float | None = None  # the same, of when launches were asked for that the clock waited for, but not enough
    has_gate: bool = False

    def launching_s(self, calls: int, queued_at: float | None) -> float:
        """Seconds that it took until all launches were in line, if the clock did not wait for that; 0.0 if it did.

        Where nobody could say so (`queued_at`), they took as long as it took to answer; without a gate, who knows.
        """
        if not self.has_gate:
            return calls * HOST_S
        if self.asked_at is None:
            return 0.0
        return (time.perf_counter() if queued_at is None else queued_at) - self.asked_at


class Costs(NamedTuple):
    """Seconds of a request that are none of its calls'."""

    empty_s: float
    """In which next to nothing is done."""

    copying_s: float = 0.0
    """Of a call's outputs on their way into shared memory."""

    showing_s: float = 0.0
    """Of a byte of inputs on its way there."""


class Baseline(NamedTuple):
    """What was measured without a candidate, which could slow everybody down while it is not asked."""

    call_s: float
    """Of a call of the reference, without costs; the median of some requests."""

    fastest_s: float
    """The same, of the fastest of them."""

    costs: Costs
    """The usual ones; the least, if somebody else used the GPU, too."""

    least: Costs
    """That were seen: somebody else can only make more of them."""

    measured_at: float
    """``time.monotonic``."""

    kind: str
    """Of the device: cpu or cuda."""

    is_quiet: bool = True
    """Nobody else used the GPU then."""

    @property
    def is_fresh(self) -> bool:
        """For the next candidate too."""
        return self.is_quiet and time.monotonic() - self.measured_at < FRESH_S[self.kind]


class Times(NamedTuple):
    """Of both in turn."""

    pairs: list[tuple[float, float]]
    """Seconds of requests, the reference's and the candidate's."""

    pings: dict[Link, list[float]]
    """And of empty ones between them."""

    launching: dict[Link, list[float]]
    """Seconds of requests whose launches the clock did not wait for."""


class Timer:
    """Times one candidate against the reference."""

    restless_until: ClassVar[float] = 0.0
    """``time.monotonic``. Somebody who is no candidate uses the GPU."""

    def __init__(self, session: Session, reference: Link) -> None:
        self.session, self.problem = session, session.problem
        self.baseline: Baseline | None = None
        self.times = Times([], {}, {})
        self.afterwards: Baseline | None = None  # once the candidate is no more
        self.compiled_s: float | None = None
        self.calls = 1
        self.until_strange = secrets.randbelow(STRANGE)
        self.candidate, self.reference = session.link, reference
        self.variant = self.problem.variants[0]
        # The oracle allows this much around itself; the reference is that far from it at most.
        self.tolerances = [
            Tolerance(2 * one.rtol, 2 * one.atol, 2 * one.relative, one.reference_error)
            for one in self.problem.own_tolerances
        ]
        self.round_s = 0.0
        self.flushed: Tensor | None = None
        if session.device.type == "cuda":  # zeros: loads the kernel that flushes, which may wait for the GPU
            with shared(session.lock):
                self.flushed = torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device=session.device)

    def measure(self, baseline: Baseline) -> None:
        """Candidate and reference in turn.

        Once more if the reference is slow, since somebody else who had the device may be gone then, and the candidate
        is not. The times with the faster reference count.
        """
        self.baseline = baseline
        self._free_memory()
        self._find_rhythm(self.candidate, baseline.costs.empty_s, baseline.call_s)
        left_s = self.candidate.left_s
        self._measure_in_turn()
        for _ in range(TRIES_IN_TURN - 1):
            is_late = self.candidate.left_s < (left_s - self.candidate.left_s) + SPARE_S
            if is_late or self._is_restless or not self.is_slow:
                break
            self._await_quiet()  # in vain, where it is the candidate who is to blame
            before, before_s = self.times, self._in_turn_s()
            self._measure_in_turn()
            if self._in_turn_s() > before_s:
                self.times = before
        times = zip(*self._calls_s(self.costs, self.costs), strict=True)
        self._refuse_below_floor(*map(statistics.median, times))

    def _measure_in_turn(self) -> None:
        self.times = Times([], {}, {})
        config, pairs = self.session.config, self.times.pairs
        rounds = max(ROUNDS[self.session.device.type], -(-config.timed_calls // self.calls))
        until = time.monotonic() + config.timing_s
        while len(pairs) < LEAST_ROUNDS or (len(pairs) < rounds and time.monotonic() < until):
            pairs += self._rounds(self.calls, rounds - len(pairs))

    def _in_turn_s(self) -> float:
        """Of a call of the reference's, in turn with the candidate."""
        return statistics.median(reference for reference, _ in self._calls_s(self.costs, self.costs))

    def measure_baseline(self) -> Baseline:
        """Before there is a candidate."""
        self._free_memory()
        if self.problem.rhythm is None:
            self.problem.keeps_inputs_back = self._can_keep_inputs_back()
            with shared(self.session.lock):
                self._draw_places(1)
                empty_s = min(self._ping(self.reference) for _ in range(4))
            self._find_rhythm(self.reference, empty_s)
            self.problem.rhythm = self.calls, self.round_s
        self.calls, self.round_s = self.problem.rhythm
        return self._baseline(BASELINE_ROUNDS, PINGS)

    def measure_afterwards(self) -> None:
        """The reference, once the candidate is no more."""
        self.reference.life_s += AFTERWARDS_S
        self.afterwards = self._baseline(LEAST_ROUNDS, PINGS_IN_TURN)
        if self.session.config.compile_baseline:
            self.compiled_s = self._compiled_s(self.calls)

    def _baseline(self, rounds: int, pings: int) -> Baseline:
        """Without a candidate. The problem remembers how fast the reference is when nobody disturbs it."""
        kind = self.session.device.type
        empty_s: list[float] = []
        by_call: list[tuple[list[float], list[float]]] = []
        each = pings if self.flushed is None else -(-pings // PIECES)

        def then(is_first: bool) -> None:  # not before: a GPU that comes out of its rest is slow
            if is_first:
                empty_s.clear()
            empty_s.extend(self._ping(self.reference) for _ in range(each))
            if is_first:
                by_call.append((self._copying_s(self.calls), self._showing_s(self.calls)))

        taken, is_quiet = self._taken_alone(rounds, then)
        least = Costs(min(empty_s), *(min(map(min, some)) for some in zip(*by_call, strict=True)))
        costs = least._replace(empty_s=statistics.median(empty_s)) if is_quiet else least
        call_s, fastest_s = (self._call_s(one, costs) for one in (statistics.median(taken), min(taken)))
        if kind == "cpu":  # which makes a process slower or faster than it was, for seconds
            fastest_s = call_s
        elif is_quiet:
            self.problem.reference_s = min(self.problem.reference_s, call_s)
        return Baseline(call_s, fastest_s, costs, least, time.monotonic(), kind, is_quiet)

    @property
    def _alone(self) -> list[Baseline]:
        """Before and afterwards, as far as nobody else used the GPU; what there is, if somebody always did."""
        found = [one for one in (self.baseline, self.afterwards) if one is not None]
        return [one for one in found if one.is_quiet] or found

    @property
    def is_slow(self) -> bool:
        """The reference surely was, in turn with the candidate: somebody else has the device too, or the candidate sees
        to it while it is not asked. What makes some requests slow, such as processes that start, does not say that."""
        references = [reference for reference, _ in self._calls_s(self.costs, self.costs)]
        return median_interval(references).low > self._slowest_s(self._known_s)

    @property
    def _known_s(self) -> float:
        """Of a call of the reference, before this candidate was there."""
        assert self.baseline is not None
        return min(self.baseline.call_s, self.problem.reference_s)

    @property
    def is_sure(self) -> bool:
        """The reference was timed while nobody else used the GPU, now or for another candidate."""
        return self.problem.reference_s < math.inf or self._alone[0].is_quiet

    def _slowest_s(self, alone_s: float) -> float:
        """What a call of the reference may take in turn with the candidate, if it takes so long without it; by no more
        could both be off."""
        kind = self.session.device.type
        return max(SLOW[kind] * alone_s, alone_s + 2 * OFF_S[kind] / self.calls)

    @property
    def costs(self) -> Costs:
        """Of a request by itself, in turn with the candidate: a third process uses the GPU then, and from one second
        to the next it differs by tens of microseconds. The candidate could make it more than that."""
        costs = self._alone[0].costs
        most_s = costs.empty_s + 2 * OFF_S[self.session.device.type]
        pings = self.times.pings.get(self.reference) or [costs.empty_s]
        return costs._replace(empty_s=min(most_s, statistics.median(pings)))

    @property
    def least(self) -> Costs:
        """The least that were seen, of processes that are the judge's own. Who takes more off makes ratios larger."""
        known = [one.least for one in (self.baseline, self.afterwards) if one is not None]
        least = Costs(*map(min, zip(*known, strict=True)))
        return least._replace(empty_s=min([least.empty_s, *self.times.pings.get(self.reference, [])]))

    @property
    def _careful(self) -> tuple[Costs, Costs]:
        """Of the reference on a GPU, and of a candidate that copies nothing and answers early, though nobody sees it.
        On a CPU it could have the time, too, that Python takes around each call, and nobody knows how long that is."""
        return self.costs, Costs(self.least.empty_s - EARLY_S, 0.0, self.costs.showing_s)

    def _calls_s(self, mine: Costs, others: Costs) -> list[tuple[float, float]]:
        """Seconds a call of the reference and of the candidate, if their requests by themselves cost so much."""
        return [(self._call_s(one, mine), self._call_s(other, others)) for one, other in self.times.pairs]

    def _noise(self, times: list[tuple[float, float]]) -> float:
        """By so much the speedup may be off for what two processes differ by when they run the same code."""
        if self.session.device.type == "cpu":
            return OFF["cpu"]
        of = {
            link: statistics.median(some)
            for link, some in zip((self.reference, self.candidate), zip(*times, strict=True), strict=True)
        }
        shares = [statistics.median(self.times.launching.get(link) or [0.0]) / (self.calls * of[link]) for link in of]
        launches = HOST_NOISE * min(1.0, max(shares))
        return launches + OFF["cuda"] + OFF_S["cuda"] / (self.calls * min(of.values()))

    def findings(self) -> dict[str, Any]:
        """Fields of the verdict.

        A reference that was fast before the candidate came, and is again when it is no more, counts as the slower of
        both; one that was slow in some requests counts as no slower than it may be. And as sure as the times in turn
        may be, the lower bound is one for the fastest that the reference ever was without a candidate, too, if that was
        faster; and both hold whether what a request costs by itself was found with the candidate, is the least that was
        ever found, or was found on the candidate's Runner. Nobody is surely faster than a reference that was never
        alone. And who could have left out what is taken off its time, as far as its text says, had better be faster by
        that, too; on a CPU it is not surely faster at all.
        """
        times = self._calls_s(self.costs, self.costs)
        references, candidates = (list(some) for some in zip(*times, strict=True))
        found_s = statistics.median(references)
        if self.afterwards is None:
            scale = min(1.0, self._slowest_s(self._known_s) / found_s)
        else:
            both_s = max(one.call_s for one in self._alone)
            scale = both_s / found_s if found_s > self._slowest_s(both_s) else 1.0
        fastest_s = min(self.problem.reference_s, *(one.fastest_s for one in self._alone))
        noise = self._noise(times)
        of_candidate_s = statistics.median(self.times.pings.get(self.candidate) or [self.costs.empty_s])
        reference_s = scale * found_s

        def interval(mine: Costs, others: Costs) -> Interval:
            both = zip(*self._calls_s(mine, others), strict=True)
            reference, candidate = (list(some) for some in both)
            return speedup_interval([scale * one for one in reference], candidate, noise)

        intervals = [
            interval(self.costs, self.costs),
            interval(self.least, self.least),
            interval(self.costs, self.costs._replace(empty_s=of_candidate_s)),
        ]
        lows = [one.low for one in intervals]
        if reaches_out(self.session.source):
            lows.append(UNSURE if self.session.device.type == "cpu" else interval(*self._careful).low)
        low = min(lows) * min(1.0, fastest_s / reference_s)
        return {
            "speedup": intervals[0].median,
            "speedup_low": low if self.is_sure else min(low, UNSURE),
            "speedup_high": max(one.high for one in intervals),
            "runtime_ms": statistics.median(candidates) * 1e3,
            "reference_ms": reference_s * 1e3,
            "reference_compile_ms": None if self.compiled_s is None else self.compiled_s * 1e3,
            "runtimes_ms": [candidate * 1e3 for candidate in candidates],
            "reference_runtimes_ms": [scale * reference * 1e3 for reference in references],
        }

    def _refuse_below_floor(self, reference_s: float, call_s: float) -> None:
        """What does not fit into the cache has to be written to memory, and that takes its time.

        Only outputs count: a solution may read less than the reference does, and compute less. Where even the
        reference is faster than that, what was taken off its time was too much, and so it was off the candidate's.
        """
        if self.session.device.type != "cuda":
            return
        from kernel_coder.judge.gpu.facts import gpu_facts

        facts = gpu_facts(self.session.device)
        written = sum(spec.nbytes for spec in self.variant.output_specs)
        least_s = min(least_time_s(written, facts.l2_bytes, facts.bandwidth), 0.9 * reference_s)
        if call_s < least_s:
            raise self.session.ended(
                Outcome.REJECTED,
                f"a call takes {1e3 * call_s:.3g} ms, and writing its outputs alone takes {1e3 * least_s:.3g} ms",
            )

    def _free_memory(self) -> None:
        """To give memory back is work for the GPU's driver that somebody would be timed beside."""
        if has_much_to_free(self.session.device):
            with shared(self.session.lock):
                free_memory(self.session.device)

    def _find_rhythm(self, link: Link, empty_s: float, *known_s: float) -> None:
        """So many calls that a request takes `TARGET_S`, by the faster of them, but no more than are wanted, and than
        the slower one makes in `MOST_S`.

        Args:
            link: of the Runner whose calls are measured here.
            empty_s: what a request costs by itself.
            known_s: what a call of the other one takes, if there is another.
        """
        answers = self._answers([link] * 4, 1, timed=False)[1:]  # the first call makes something, too
        self._choose_rhythm(answers, empty_s, known_s)
        seems_long = self.round_s * ROUNDS[self.session.device.type] > CHUNK_S
        if seems_long and self.session.lock is not None:  # beside others, as it might not be alone
            self._choose_rhythm(self._answers([link] * 2, 1, timed=True), empty_s, known_s)
        for one in (self.reference, self.candidate):
            one.ask(Say.PING, 0, self.calls, 0, 0, 0)
            one.answer(Say.PING)

    def _choose_rhythm(self, answers: Sequence[Answer], empty_s: float, known_s: Sequence[float]) -> None:
        kind = self.session.device.type
        times = [max(one, LEAST_S) for one in (min(one.taken for one in answers) - empty_s, *known_s)]
        faster, slower = min(times), max(times)
        wanted = -(-self.session.config.timed_calls // ROUNDS[kind])
        enough = min(ENOUGH_CALLS, round(ENOUGH_S[kind] / faster), STAGED_BYTES[kind] // self._bytes(1))
        wanted = max(LEAST_CALLS[kind], wanted, enough)
        most = min(self.variant.slots, round(TARGET_S / faster), round(MOST_S / slower))
        self.calls = max(1, min(wanted, most))
        self.round_s = 2 * (empty_s + self.calls * slower)

    def _rounds(self, calls: int, count: int) -> list[tuple[float, float]]:
        """Seconds of a request to the reference and to the candidate, so many times, in an order that nobody knows."""
        links = [link for _ in range(self._together(calls, count)) for link in self._both()]
        taken = {self.reference: list[float](), self.candidate: list[float]()}
        then: Callable[[], None] | None = None
        pings, launching = self.times.pings, self.times.launching
        if not pings:
            pings |= {self.reference: [], self.candidate: []}
            then = partial(self._ping_each, [one for _ in range(PINGS_IN_TURN) for one in self._both()], pings)
        for answer in self._answers(links, calls, timed=True, then=then):
            taken[answer.link].append(answer.taken)
            launching.setdefault(answer.link, []).append(answer.launching_s)
        return list(zip(taken[self.reference], taken[self.candidate], strict=True))

    def _ping_each(self, links: Sequence[Link], found: dict[Link, list[float]]) -> None:
        """What a request costs by itself. The candidate's Runner says what it likes, which counts for how sure the
        speedup is and for nothing else."""
        for link in links:
            found[link].append(self._ping(link))

    def _taken_alone(self, rounds: int, then: Callable[[bool], None]) -> tuple[list[float], bool]:
        """Seconds of requests to the reference while there is no candidate, and whether nobody else used the GPU; again
        where somebody did, and may be gone by then."""
        for left in reversed(range(1 if self._is_restless else TRIES)):
            taken, is_quiet = self._taken_in_pieces(rounds, then)
            if is_quiet or not left:
                break
            self._await_quiet()
        if not is_quiet and not self._is_restless:
            Timer.restless_until = time.monotonic() + RESTLESS_S
            print("somebody else uses the GPU, also while the reference is timed without a candidate", file=sys.stderr)
        return taken, is_quiet

    def _taken_in_pieces(self, rounds: int, then: Callable[[bool], None]) -> tuple[list[float], bool]:
        """`then` is what is done in each piece, too, and told whether that is the first."""
        taken: list[float] = []
        loads: list[float] = []

        def look() -> None:
            loads.append(self._load())

        def look_again() -> None:
            if not taken:  # what requests cost is measured in between, once
                then(True)
            look()
            if taken:
                then(False)

        until = time.monotonic() + ALONE_S
        most = rounds if self.flushed is None else -(-rounds // PIECES)
        while not taken or (len(taken) < rounds and time.monotonic() < until):
            if taken and self.flushed is not None:
                time.sleep(random.uniform(0.0, PAUSE_S))
            links = [self.reference] * self._together(self.calls, min(most, rounds - len(taken)))
            taken += [one.taken for one in self._answers(links, self.calls, timed=True, first=look, then=look_again)]
        is_shared = [one >= LOADED for one in loads]
        return taken, not any(is_shared[:2]) and sum(is_shared) <= BUSY * len(loads)

    def _await_quiet(self) -> None:
        """Until nobody else uses the GPU, if that comes soon. To wait for that is no part of a candidate's life."""
        until = time.monotonic() + QUIET_S
        while True:
            with alone(self.session.lock):
                if self._load() < LOADED:
                    return
            if (now := time.monotonic()) >= until:
                return
            time.sleep(QUIET_POLL_S)
            Turn.waited_s += time.monotonic() - now

    @property
    def _is_restless(self) -> bool:
        return time.monotonic() < Timer.restless_until

    def _load(self) -> float:
        """How many times as long as alone somebody takes who uses the GPU now."""
        return 1.0 if self.flushed is None else load_of(self.session.device).now(self._flush)

    def _together(self, calls: int, count: int) -> int:
        """Rounds, of so many, while others are kept from the device."""
        room = STAGED_BYTES[self.session.device.type] // self._bytes(calls)
        return max(1, min(count, room, round(CHUNK_S / self.round_s)))

    def _call_s(self, taken: float, costs: Costs) -> float:
        """Seconds of one of a request's calls, if it took so long, and costs so much by itself."""
        shown = max(self.calls * self.variant.input_stride - SHOWN_BYTES, 0)
        of_request = costs.empty_s + self.calls * costs.copying_s + shown * costs.showing_s
        return max(taken - of_request, taken * LEAST) / self.calls

    def _answers(
        self,
        links: list[Link],
        calls: int,
        *,
        timed: bool,
        first: Callable[[], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> list[Answer]:
        """To a request to each in turn, every one of the candidate's checked; with the device to itself if `timed`, and
        for what is to be done `first` and `then`."""
        lock = self.session.lock
        is_kept = self._bytes(calls) <= STAGED_BYTES[self.session.device.type]
        with shared(lock) as turn:
            self._draw_places(calls)
            requests = self._requests(links, calls, turn) if is_kept else None
            if not timed:
                answers = self._answered(links, calls, requests)
                turn.pause()
                self._check(answers)
                return answers
        with alone(lock):
            if first is not None:
                first()
            answers = self._answered(links, calls, requests)
            if then is not None:
                then()
        with shared(lock):
            self._check(answers)
        return answers

    def _requests(self, links: list[Link], calls: int, turn: Turn) -> list[Request]:
        """That are kept until they are made."""
        requests: list[Request] = []
        known: Request | None = None  # what the candidate will have been asked by then
        for link in links:
            turn.pause()
            if link is self.reference and known is not None:
                requests.append(known.again(link))
                continue
            requests.append(self._request(link, calls, True))
            if link is not self.reference and all(one.family == "own" for one in requests[-1].expected):
                known = requests[-1]
        return requests

    def _answered(self, links: list[Link], calls: int, requests: list[Request] | None) -> list[Answer]:
        """Where they are not kept, each takes the place of the one before, whose answer is checked before that."""
        answers: list[Answer] = []
        for place, link in enumerate(links):
            request = self._request(link, calls, False) if requests is None else requests[place]
            answers.append(self._answer(request))
            if requests is None:
                self._check(answers[-1:])
                answers[-1] = answers[-1].forgotten()
            del request  # before the next one is made
        return answers

    def _both(self) -> list[Link]:
        """In an order that nobody knows."""
        both: list[Link] = [self.reference, self.candidate]
        return both[::-1] if secrets.randbelow(2) else both

    def _bytes(self, calls: int) -> int:
        """That a round takes if it is kept: inputs of two requests, outputs twice of one."""
        return 2 * calls * (self.variant.input_stride + self.variant.output_stride)

    def _ping(self, link: Link) -> float:
        """Seconds that a request takes in which next to nothing is done."""
        region = self._inputs(1)[:SHOWN_BYTES]
        start = self._asked(link, 1, region, torch.empty_like(region), Say.PING, 0, 0, 0, 1)
        link.answer(Say.PING, AWAKE_S, link.request_s)
        self._canaries(link.outputs.bytes)
        return time.perf_counter() - start.at

    def _copying_s(self, calls: int) -> list[float]:
        """Seconds of a GPU that a call's outputs take on their way into shared memory, which is none of the candidate's
        work, some times; of so many calls, since the first copy of a row takes longer. On the CPU the caches decide,
        and nothing is taken off."""
        if self.flushed is None:
            return [0.0]
        found = [one for slot in range(calls) for one in self.problem.found(self.reference.outputs, self.variant, slot)]
        made = [torch.empty_like(one) for one in found[: len(self.variant.output_specs)]]
        return [one / calls for one in self._device_s(list(zip(made * calls, found, strict=True)))]

    def _showing_s(self, calls: int) -> list[float]:
        """Seconds of a GPU that a byte of inputs takes on its way into shared memory, where they are many."""
        region = self._inputs(calls)[:MEASURED_BYTES]
        if self.flushed is None or not self.problem.keeps_inputs_back or region.numel() <= SHOWN_BYTES:
            return [0.0]
        return [one / region.numel() for one in self._device_s([(torch.empty_like(region), region)])]

    def _device_s(self, copies: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
        """Of the GPU's time, that copying takes from the one to the other, all in a row; some times."""
        taken = []
        for _ in range(COPIES):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._flush()
            for one in {id(one): one for one, _ in copies}.values():  # fresh from the kernel, as a candidate's
                one.zero_()
            torch.cuda._sleep(100_000 + 20_000 * len(copies))  # cycles in which all copies come to wait in line
            begin.record()
            for one, place in copies:
                place.copy_(one)
            end.record()
            torch.cuda.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        return taken

    def _can_keep_inputs_back(self) -> bool:
        """Until the clock runs: on a GPU, and where there is memory for them twice."""
        if self.flushed is None:
            return False
        try:
            torch.empty(self.variant.slots * self.variant.input_stride, dtype=torch.uint8, device=self.session.device)
        except torch.OutOfMemoryError:
            return False
        return True

    def _draw_places(self, calls: int) -> None:
        size = calls * self.variant.output_stride
        drawn = torch.frombuffer(bytearray(secrets.token_bytes(8 * CANARIES)), dtype=torch.int64)
        self.places = drawn.remainder(size).to(self.session.device)  # whoever knew them could do those first

    def _canaries(self, outputs: Tensor) -> Tensor:
        return outputs[self.places].cpu()

    def _flush(self) -> None:
        if self.flushed is not None:
            self.flushed.zero_()

    def _asked(self, link: Link, calls: int, region: Tensor, staged: Tensor | None, say: Say, *values: int) -> Start:
        """When the clock started: before Runners could see the inputs, where those are kept back, and all that was
        asked for waited behind the gate, or when it should have; otherwise once they were there."""
        gate = gate_of(self.session.device) if self.problem.keeps_inputs_back else None
        if gate is not None:
            return self._asked_behind(gate, link, calls, region, staged, say, *values)
        self.session.synchronise()
        started = time.perf_counter()
        if staged is not None:
            region.copy_(staged)
        self._flush()
        self.session.synchronise()
        if not self.problem.keeps_inputs_back:
            started = time.perf_counter()
        link.ask(say, *values, 1)
        return Start(started)

    def _asked_behind(
        self, gate: Gate, link: Link, calls: int, region: Tensor, staged: Tensor | None, say: Say, *values: int
    ) -> Start:
        number = 1 + secrets.randbelow(0xFFFF_FFFF)
        gate.shut()
        try:
            if staged is not None:
                region.copy_(staged)
            self._flush()
            write_later(link.outputs.bytes.data_ptr() + self.problem.plan["gate_at"], number, self.session.device)
            asked_at = time.perf_counter()
            link.ask(say, *values, 1, number)
            is_in_line = link.await_queued(calls * AHEAD_S)
            gate.await_reached()
        finally:
            opened = gate.open()
        return Start(opened, None if is_in_line else asked_at, has_gate=True)

    def _compiled_s(self, calls: int) -> float | None:
        """Seconds a call of the reference under torch.compile; None if that cannot be had."""
        self.reference.life_s += COMPILE_S
        lock = self.session.lock
        try:
            with shared(lock):
                request = self._request(self.reference, calls, False)
            self._answer(request, Mode.COMPILED)  # which takes long, and need not be timed
            with alone(lock):
                answers = [
                    self._answer(self._request(self.reference, calls, False), Mode.COMPILED)
                    for _ in range(LEAST_ROUNDS)
                ]
        except ReferenceFailed as failed:
            print(failed, file=sys.stderr)  # the Examiner's: for people
            return None
        assert self.baseline is not None
        return statistics.median(self._call_s(one.taken, self.costs) for one in answers)

    def _request(self, link: Link, count: int, is_kept: bool) -> Request:
        """Of `count` calls on fresh inputs, each of which is checked."""
        problem = self.problem
        seed_all(problem.seeds.next(), self.session.device)
        is_candidate = link is not self.reference
        region = self._inputs(count)
        is_staged = is_kept or problem.keeps_inputs_back or self.flushed is None
        staged = torch.empty_like(region) if is_staged else None
        memory = region if staged is None else staged
        has_room = is_kept or self.flushed is None
        strange = secrets.randbelow(count) if is_candidate and has_room and self._is_strange() else -1
        expected = [
            self._strange(memory, slot) if slot == strange else self._fresh(memory, slot, is_candidate)
            for slot in range(count)
        ]
        hashes = problem.fingerprint.of([memory]) if is_candidate else None
        return Request(link, count, staged, is_kept, expected, hashes)

    def _inputs(self, calls: int) -> Tensor:
        """Bytes that Runners read."""
        begin = self.problem.slots_at
        return self.problem.inputs.bytes[begin : begin + calls * self.variant.input_stride]

    def _is_strange(self) -> bool:
        """Whether the candidate's next request has such a call; nobody knows which, but that one of STRANGE has."""
        self.until_strange -= 1
        if self.until_strange >= 0:
            return False
        self.until_strange = secrets.randbelow(STRANGE)
        return True

    def _strange(self, memory: Tensor, slot: int) -> Expected:
        """Inputs of another kind than the task's own, in their place."""
        families = [one for one in self.problem.families if one != "own"] or ["own"]
        sample = self.session.sample(families[secrets.randbelow(len(families))])
        self._put(memory, slot, [*sample.tensors, *sample.cotangents])
        return Expected(sample.expected, sample.tolerances, sample.family)

    def _fresh(self, memory: Tensor, slot: int, is_checked: bool) -> Expected:
        """Inputs that nobody has seen, in their place; what has to come out, if that is compared."""
        problem = self.problem
        inputs = problem.own_inputs(seeded=True)
        cotangents = problem.cotangents_of(inputs)
        expected: list[Tensor] = []
        if is_checked:
            copies = map_tensors(inputs, Tensor.clone) if problem.changes_inputs else inputs
            expected = tensors_of(problem.outputs(problem.module, copies, cotangents))
        # Not before: where there is no room to keep them back, who looks out for them could begin.
        self._put(memory, slot, [*tensors_of(inputs), *cotangents])
        return Expected(expected, self.tolerances)

    def _put(self, memory: Tensor, slot: int, values: Sequence[Tensor]) -> None:
        variant = self.variant
        for spec, value in zip([*variant.input_specs, *variant.cotangent_specs], values, strict=True):
            tensor_at(memory, spec, slot * variant.input_stride).copy_(value)

    def _answer(self, request: Request, mode: Mode = Mode.PLAIN) -> Answer:
        """With the clock running."""
        problem, link, region = self.problem, request.link, self._inputs(request.calls)
        outputs = link.outputs.bytes[: request.calls * self.variant.output_stride]
        fill_random(outputs, problem.poison)
        asked = (Say.CALL, 0, request.calls, 0, int(mode))
        start = self._asked(link, request.calls, region, request.staged, *asked)
        frame = link.answer(Say.CALL, AWAKE_S, link.request_s)
        seen = self._canaries(outputs)
        taken = time.perf_counter() - start.at
        launching_s = start.launching_s(request.calls, link.queued_at)
        if request.hashes is None:
            if frame.status != Status.OK:
                raise ReferenceFailed(f"the reference failed in its own Runner: {link.text()}")
            return Answer(link, request, taken, launching_s, outputs, seen, None)
        self.session.refuse_status(frame)
        found = outputs.clone() if request.is_kept or self.flushed is None else outputs
        return Answer(link, request, taken, launching_s, found, seen, problem.fingerprint.of([region]))

    def _check(self, answers: list[Answer]) -> None:
        """All that the candidate has made, as it was when the clock stopped."""
        own = [(one, one.request) for one in answers if one.request is not None and one.link is not self.reference]
        calls = [
            (self._outputs(answer.found, slot), expected)
            for answer, request in own
            for slot, expected in enumerate(request.expected)
        ]
        results = read_comparisons(
            [
                ops.compare(found, wanted, rtol=allowed.rtol, atol=allowed.atol)
                for outputs, expected in calls
                for found, wanted, allowed in zip(outputs, expected.outputs, expected.tolerances, strict=True)
            ]
        )
        for place, (outputs, expected) in enumerate(calls):
            mine = results[place * len(outputs) : (place + 1) * len(outputs)]
            when = "In a timed call: "
            self.session.refuse_values(self.variant, expected.family, expected.tolerances, mine, when)
        if not own:
            return
        seen_again = torch.stack([answer.found[self.places] for answer, _ in own]).cpu()
        if not torch.equal(seen_again, torch.stack([answer.seen for answer, _ in own])):
            raise self.session.ended(Outcome.REJECTED, "it wrote to an output after it had answered")
        if self.problem.changes_inputs:
            return
        after, before = ([one.hashes for pair in own if (one := pair[i]).hashes is not None] for i in (0, 1))
        if not torch.equal(torch.stack(after), torch.stack(before)):
            raise self.session.ended(Outcome.WRONG_OUTPUT, "it wrote to an input in a timed call")

    def _outputs(self, memory: Tensor, slot: int) -> list[Tensor]:
        base = slot * self.variant.output_stride
        return [tensor_at(memory, spec, base) for spec in self.variant.output_specs]
