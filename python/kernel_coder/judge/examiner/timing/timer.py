"""How much faster a candidate is: its requests and the reference's in turn, through the same protocol, all compared.

The reference is timed before the candidate is there, in turn with it, and, if it was slowed down, after the candidate's
processes have ended. What a request costs by itself is measured on the reference's Runner and subtracted from both
times. What it costs on the candidate's Runner only says how sure the result is.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link, ReferenceFailed
from kernel_coder.judge.examiner.source_checks import reaches_out
from kernel_coder.judge.examiner.timing.answers import Requester
from kernel_coder.judge.examiner.timing.baseline import BaselineTimer
from kernel_coder.judge.examiner.timing.estimate import Estimate
from kernel_coder.judge.examiner.timing.rhythm import find_rhythm, rounds_together
from kernel_coder.judge.examiner.timing_constants import (
    BASELINE_ROUNDS,
    MIN_ROUNDS,
    PINGS,
    PINGS_IN_TURN,
    SPARE_S,
    TIMING,
    TRIES_IN_TURN,
)
from kernel_coder.judge.examiner.timing_records import Baseline, Party, Rhythm, TimesInTurn
from kernel_coder.judge.gpu.facts import gpu_facts, known_bandwidth
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.limits import AFTERWARDS_S, COMPILE_S
from kernel_coder.judge.wire.messages import Mode, Say
from kernel_coder.judge.wire.shared_tensors import free_memory, has_much_to_free


class Timer:
    """Times one candidate against the reference, or the reference before a candidate is there."""

    def __init__(self, checker: Checker, reference: Link) -> None:
        """
        Args:
            checker: of the candidate; of the reference itself if there is no candidate yet.
            reference: to the reference's own Runner.
        """
        self.checker, self.task, self.turns = checker, checker.task, checker.turns
        self.candidate, self.reference = checker.link, reference
        self.device, self.config, self.variant = self.task.device, self.task.config, self.task.variants[0]
        self.kind = self.device.type
        self.requester = Requester(checker, reference)
        self.alone = BaselineTimer(self.task, self.requester, reference, self.turns)
        self.rhythm = Rhythm(1, 0.0)
        self.times = TimesInTurn()
        self.before: Baseline | None = None
        self.afterwards: Baseline | None = None
        self.compiled_s: float | None = None
        self.could_reach_runner = reaches_out(checker.source)

    # ---- without a candidate

    def measure_baseline(self) -> Baseline:
        """The reference, before there is a candidate."""
        self._measure_gpu()
        self._free_memory()
        known, clock = self.task.known, self.requester.clock
        if known.rhythm is None:
            known.keeps_inputs_back = clock.can_keep_inputs_back()
            with self.turns.shared():
                clock.draw_places(1)
                empty_s = min(clock.ping(self.reference) for _ in range(4))
            known.rhythm = self._find_rhythm(self.reference, empty_s)
        self.rhythm = known.rhythm
        return self.alone.measure(self.rhythm, BASELINE_ROUNDS, PINGS)

    def measure_afterwards(self) -> None:
        """The reference, once the candidate's processes have ended."""
        self.reference.life_s += AFTERWARDS_S
        self.afterwards = self.alone.measure(self.rhythm, MIN_ROUNDS, PINGS_IN_TURN)
        if self.config.compile_baseline:
            self.compiled_s = self._compiled_call_s()

    def _measure_gpu(self) -> None:
        """Measure the bandwidth of a GPU that is not in the table, before a candidate could disturb that."""
        if self.kind == "cuda" and known_bandwidth(torch.cuda.get_device_name(self.device)) is None:
            with self.turns.alone():
                gpu_facts(self.device)

    def _compiled_call_s(self) -> float | None:
        """Seconds of a call of the reference under torch.compile; None if it does not compile."""
        self.reference.life_s += COMPILE_S
        clock, maker, calls = self.requester.clock, self.requester.maker, self.rhythm.calls
        try:
            with self.turns.shared():
                request = maker.make(self.reference, calls, False)
            clock.measure(request, Mode.COMPILED)  # compiles, which takes long, beside other processes
            with self.turns.alone():
                answers = [
                    clock.measure(maker.make(self.reference, calls, False), Mode.COMPILED) for _ in range(MIN_ROUNDS)
                ]
        except ReferenceFailed as failed:
            print(failed, file=sys.stderr)  # the Examiner's stderr is read by people
            return None
        costs = self.estimate.costs
        return statistics.median(costs.call_s(one.taken_s, calls, self.variant.input_stride) for one in answers)

    # ---- in turn

    def measure(self, before: Baseline) -> None:
        """Time candidate and reference in turn.

        If the reference was slowed down it is done once more. A program that used the device may have ended by then;
        the candidate has not. The times with the faster reference count.

        Args:
            before: the reference before the candidate was there.

        Raises:
            Judged: an output was wrong, or the candidate is faster than its outputs can be written.
        """
        self.before = before
        self._free_memory()
        self.rhythm = self._find_rhythm(self.candidate, before.costs.empty_s, before.call_s)
        left_s = self.candidate.left_s
        self._measure_in_turn()
        for _ in range(TRIES_IN_TURN - 1):
            is_late = self.candidate.left_s < (left_s - self.candidate.left_s) + SPARE_S
            if is_late or self.alone.is_gpu_busy or not self.estimate.is_slow:
                break
            self.alone.await_quiet()  # in vain if the candidate slows the reference down
            first, first_s = self.times, self.estimate.in_turn_s[0]
            self._measure_in_turn()
            if self.estimate.in_turn_s[0] > first_s:
                self.times = first
        self._refuse_below_floor(*self.estimate.in_turn_s)

    def _measure_in_turn(self) -> None:
        self.times = TimesInTurn()
        pairs = self.times.pairs
        rounds = max(TIMING[self.kind].rounds, -(-self.config.timed_calls // self.rhythm.calls))
        until = time.monotonic() + self.config.timing_s
        while len(pairs) < MIN_ROUNDS or (len(pairs) < rounds and time.monotonic() < until):
            self._measure_rounds(rounds - len(pairs))

    def _measure_rounds(self, count: int) -> None:
        """Up to `count` rounds, each in a secret order. The first ones also measure what requests cost."""
        together = rounds_together(self.requester, self.rhythm, count)
        links = [link for _ in range(together) for link in self._both()]
        then: Callable[[], None] | None = None
        if not self.times.pings["reference"]:
            then = partial(self._ping_each, [link for _ in range(PINGS_IN_TURN) for link in self._both()])
        taken: dict[Party, list[float]] = {"reference": [], "candidate": []}
        for answer in self.requester.answers(links, self.rhythm.calls, timed=True, then=then):
            party = self._party(answer.link)
            taken[party].append(answer.taken_s)
            self.times.launching[party].append(answer.launching_s)
        self.times.pairs += zip(taken["reference"], taken["candidate"], strict=True)

    def _ping_each(self, links: list[Link]) -> None:
        """Measure what a request costs by itself. The candidate's Runner may lie about that."""
        for link in links:
            self.times.pings[self._party(link)].append(self.requester.clock.ping(link))

    def _both(self) -> list[Link]:
        """Both, in a secret order."""
        both: list[Link] = [self.reference, self.candidate]
        return both[::-1] if secrets.randbelow(2) else both

    def _party(self, link: Link) -> Party:
        return "reference" if link is self.reference else "candidate"

    def _find_rhythm(self, link: Link, empty_s: float, *known_s: float) -> Rhythm:
        """Choose how requests are made, and have both Runners prepare for them."""
        rhythm = find_rhythm(
            self.requester, link, empty_s, known_s, timed_calls=self.config.timed_calls, variant=self.variant
        )
        for one in (self.reference, self.candidate):
            one.ask(Say.PING, 0, rhythm.calls, 0, 0, 0)
            one.answer(Say.PING)
        return rhythm

    def _refuse_below_floor(self, reference_s: float, call_s: float) -> None:
        """Raise Judged if a call is faster than its outputs can be written to memory.

        Only outputs that do not fit into the cache count: a solution may read less than the reference does, and compute
        less. Where even the reference is faster than that, too much was subtracted from its time, and so from the
        candidate's.
        """
        if self.kind != "cuda":
            return
        facts = gpu_facts(self.device)
        written = sum(spec.nbytes for spec in self.variant.output_specs)
        least_s = min(least_time_s(written, facts.l2_bytes, facts.bandwidth), 0.9 * reference_s)
        if call_s < least_s:
            raise Judged(
                Outcome.REJECTED,
                f"a call takes {1e3 * call_s:.3g} ms, and writing its outputs alone takes {1e3 * least_s:.3g} ms",
            )

    def _free_memory(self) -> None:
        """Give unused memory back to the GPU, if it is much. Later the driver would do it while something is timed."""
        if has_much_to_free(self.device):
            with self.turns.shared():
                free_memory(self.device)

    # ---- the result

    @property
    def estimate(self) -> Estimate:
        """The speedup by what has been measured so far."""
        assert self.before is not None
        return Estimate(
            kind=self.kind,
            calls=self.rhythm.calls,
            input_stride=self.variant.input_stride,
            times=self.times,
            before=self.before,
            afterwards=self.afterwards,
            fastest_s=self.task.known.fastest_s,
            could_reach_runner=self.could_reach_runner,
        )

    @property
    def needs_reference_alone(self) -> bool:
        """Whether the reference has to be timed again, once the candidate's processes have ended."""
        estimate = self.estimate
        return estimate.is_slow or not estimate.is_sure

    def findings(self) -> dict[str, Any]:
        """Fields of the verdict."""
        compiled_ms = None if self.compiled_s is None else self.compiled_s * 1e3
        return {**self.estimate.findings(), "reference_compile_ms": compiled_ms}


def least_time_s(written: int, l2_bytes: int, bandwidth: float) -> float:
    """Seconds that writing takes at least, if the cache keeps what it can.

    Args:
        written: bytes.
        l2_bytes: size of the cache.
        bandwidth: bytes a second.

    >>> least_time_s(150 * 10**6, 50 * 10**6, 1e12), least_time_s(10, 50, 1e12)
    (9e-05, 0.0)
    """
    return 0.9 * max(written - l2_bytes, 0) / bandwidth
