"""Times a candidate and the reference in turn, with the same protocol.

The reference is timed before the candidate starts, in turn with it, and, if it was slowed down, after the candidate's
processes have ended. What a request costs by itself is measured on the reference's Runner and subtracted from both
times.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link, ReferenceFailed
from kernel_coder.judge.examiner.source_checks import reaches_out
from kernel_coder.judge.examiner.timing.rounds import Requester
from kernel_coder.judge.examiner.timing.speedup import Speedup
from kernel_coder.judge.examiner.timing_constants import (
    BASELINE_PIECES,
    BASELINE_S,
    BUSY_S,
    CHUNK_S,
    MAX_BASELINE_SPREAD,
    MAX_PAUSE_S,
    MAX_REQUEST_S,
    MIN_ROUNDS,
    QUIET_S,
    QUIET_TRIES,
    REQUEST_COST_S,
    REQUEST_S,
    SHARED_PROBES,
    TIMING,
)
from kernel_coder.judge.examiner.timing_records import Baseline, Costs, Party, Rounds, call_time
from kernel_coder.judge.gpu.contention import LOADED
from kernel_coder.judge.gpu.facts import gpu_facts, known_bandwidth
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.limits import AFTERWARDS_S, COMPILE_S
from kernel_coder.judge.wire.messages import Mode
from kernel_coder.judge.wire.shared_tensors import free_memory, has_much_to_free


class Timer:
    """Times one candidate and the reference, or the reference alone before a candidate starts."""

    def __init__(self, checker: Checker, reference: Link) -> None:
        """
        Args:
            checker: the candidate's checker; before a candidate starts, one for the reference's Runner.
            reference: the link to the reference's own Runner.
        """
        self.checker, self.task, self.turns = checker, checker.task, checker.turns
        self.candidate, self.reference = checker.link, reference
        self.device, self.config, self.variant = self.task.device, self.task.config, self.task.variants[0]
        self.kind = self.device.type
        self.requester = Requester(checker, reference)
        self.rounds = Rounds()
        self.before: Baseline | None = None
        self.afterwards: Baseline | None = None
        self.compiled_s: float | None = None
        self.could_reach_runner = reaches_out(checker.source)

    # ---- without a candidate

    def measure_baseline(self) -> Baseline:
        """Time the reference before a candidate starts."""
        self._measure_gpu()
        self._free_memory()
        found = self._measured_baseline()
        self.requester.free_memory()
        return found

    def _measured_baseline(self) -> Baseline:
        """Time the reference alone, with as many calls in a request as it takes."""
        known = self.task.known
        if known.calls == 0:
            self.requester.answers(["reference", "empty"], 1, timed=False)  # warm-up
            taken_s = [one.taken_s for one in self.requester.answers(["reference", "empty"] * 3, 1)]
            call_s = call_time(min(taken_s[::2]), min(taken_s[1::2]), 1)
            known.calls = self._in_line("reference", self._wanted_calls(call_s))
        while True:
            found = self._timed_alone(known.calls)
            wanted = self._wanted_calls(found.call_s)  # more calls, if another program disturbed the first measurement
            if not found.is_quiet or wanted <= 2 * known.calls:
                return found
            if (calls := self._in_line("reference", wanted)) <= known.calls:
                return found
            known.calls = calls

    def measure_afterwards(self) -> None:
        """Time the reference after the candidate's processes have ended."""
        self.reference.time_limit_s += AFTERWARDS_S
        self.afterwards = self._timed_alone(self.rounds.calls)
        if self.config.compile_baseline:
            self.compiled_s = self._compiled_call_s()

    def _measure_gpu(self) -> None:
        """Measure the bandwidth of a GPU that is not in the table, before a candidate could disturb the measurement."""
        if self.kind == "cuda" and known_bandwidth(torch.cuda.get_device_name(self.device)) is None:
            with self.turns.alone():
                gpu_facts(self.device)

    def _timed_alone(self, calls: int) -> Baseline:
        """Time the reference without a candidate. If another program used the GPU, try again, because that program may
        have ended by then. Without such a program, remember the reference's fastest time and what requests cost."""
        for left in reversed(range(1 if self._is_gpu_busy else QUIET_TRIES)):
            found = self._timed_in_pieces(calls)
            if found.is_quiet or not left:
                break
            self.turns.sleep(QUIET_S)
        known = self.task.known
        if found.is_quiet and self.kind != "cpu":
            known.fastest_s, known.costs = min(known.fastest_s, found.call_s), found.costs
        if not found.is_quiet and known.costs is not None:
            found = found._replace(costs=known.costs)
        if not found.is_quiet and not self._is_gpu_busy:
            self.turns.busy_until = time.monotonic() + BUSY_S
            print(
                "another program uses the GPU, also while the reference is timed without a candidate", file=sys.stderr
            )
        return found

    def _timed_in_pieces(self, calls: int) -> Baseline:
        """Time the reference without a candidate once, in several measurements."""
        taken: dict[Party, list[float]] = {"reference": [], "empty": [], "single": []}
        loads: list[float] = []
        until = time.monotonic() + BASELINE_S
        while not loads or (len(taken["reference"]) < BASELINE_PIECES and time.monotonic() < until):
            if loads and self.kind != "cpu":
                time.sleep(random.uniform(0.0, MAX_PAUSE_S))
            answers = self.requester.answers(list(taken), calls, around=lambda: loads.append(self._load()))
            for party, answer in zip(taken, answers, strict=True):
                taken[party].append(answer.taken_s)
        is_quiet = sum(one >= LOADED for one in loads) <= SHARED_PROBES * len(loads)
        if self.kind != "cpu":
            is_quiet &= all(statistics.median(some) <= MAX_BASELINE_SPREAD * min(some) for some in taken.values())
        empty_s, single_s = min(taken["empty"]), min(taken["single"])  # another program can only increase them
        costs = Costs(single_s, max(empty_s - single_s, 0.0) / max(calls - 1, 1))
        call_s, fastest_s = (
            call_time(one, empty_s, calls) for one in (statistics.median(taken["reference"]), min(taken["reference"]))
        )
        # On a CPU a process may be faster or slower than usual for several seconds.
        fastest_s = call_s if self.kind == "cpu" else fastest_s
        return Baseline(call_s, fastest_s, costs, time.monotonic(), self.kind, is_quiet)

    def _load(self) -> float:
        """Return how many times as long as on a free GPU a piece of work takes now."""
        return self.requester.clock.load()

    @property
    def _is_gpu_busy(self) -> bool:
        """Whether another program used the GPU for long, a short while ago. Then waiting for its end is no use."""
        return time.monotonic() < self.turns.busy_until

    def _compiled_call_s(self) -> float | None:
        """Return the seconds of a call of the reference under torch.compile; None if it does not compile."""
        self.reference.time_limit_s += COMPILE_S
        clock, maker, calls = self.requester.clock, self.requester.maker, self.rounds.calls
        try:
            with self.turns.shared():
                request = maker.make(calls, False, False)
            clock.measure(self.reference, calls, request, Mode.COMPILED)  # compiles, while others may use the device
            with self.turns.alone():
                taken_s = [
                    clock.measure(self.reference, calls, maker.make(calls, False, False), Mode.COMPILED).taken_s
                    for _ in range(MIN_ROUNDS)
                ]
        except ReferenceFailed as failed:
            print(failed, file=sys.stderr)  # the Examiner's stderr is read by people
            return None
        return statistics.median(call_time(one, self.speedup.empty_s, calls) for one in taken_s)

    # ---- how many calls a request has

    def _wanted_calls(self, call_s: float) -> int:
        """Return how many calls a request needs to take long enough, as far as there is memory for them and they take
        at most :data:`REQUEST_S`."""
        device = TIMING[self.kind]
        room = min(math.ceil(device.least_s / call_s), self.requester.room(1), device.max_calls // device.min_rounds)
        return max(1, min(max(self._least_calls, room), self.variant.slots, round(REQUEST_S / call_s)))

    @property
    def _least_calls(self) -> int:
        """Number of calls a request needs so that all rounds have as many calls as the configuration asks for."""
        return math.ceil(self.config.timed_calls / TIMING[self.kind].min_rounds)

    def _in_line(self, party: Party, calls: int) -> int:
        """Return at most `calls`, so few that all their launches get in line before the gate opens, but at least
        `_least_calls`. A GPU holds about a thousand launches."""
        while calls > self._least_calls and self.requester.answers([party], calls, timed=False)[0].launching_s:
            calls = max(calls // 4, self._least_calls)
        return calls

    # ---- candidate and reference in turn

    def measure(self, before: Baseline) -> None:
        """Time candidate and reference in turn.

        Args:
            before: times of the reference before the candidate started.

        Raises:
            Judged: an output was wrong, or the candidate is faster than its outputs can be written.
        """
        self.before = before
        self._free_memory()
        # Warm-up. Other processes may use the device meanwhile, so the candidate may be faster later.
        parties: list[Party] = ["empty", "reference", "candidate", "candidate", "candidate"]
        firsts = self.requester.answers(parties, 1, timed=False)
        first_s = min(one.taken_s for one in firsts[-2:])
        calls = max(1, min(self.task.known.calls, round(MAX_REQUEST_S / first_s)))
        calls = self._in_line("candidate", calls)
        self.rounds = Rounds(calls)
        round_s = 3 * REQUEST_COST_S + calls * before.call_s + min(calls * first_s, MAX_REQUEST_S)
        device = TIMING[self.kind]
        rounds = min(device.rounds, max(device.min_rounds, device.max_calls // calls))
        wanted = math.ceil(self.config.timed_calls / calls)
        rounds = max(rounds, wanted)
        until = time.monotonic() + self.config.timing_s
        self._measure_until(rounds if self.kind == "cpu" else max(MIN_ROUNDS, wanted), until, round_s)
        if self.kind != "cpu" and not self.speedup.is_settled:
            self._measure_until(rounds, until, round_s)
            if self.speedup.is_scattered:
                self._measure_until(rounds + rounds // 2, until, round_s)
        self.requester.free_memory()
        self._refuse_below_floor()

    def _measure_until(self, rounds: int, until: float, round_s: float) -> None:
        """Measure until there are this many rounds, or until this time if there are :data:`MIN_ROUNDS`."""
        while (done := len(self.rounds.taken_s["reference"])) < rounds:
            if done >= MIN_ROUNDS and time.monotonic() > until:
                break
            room = self.requester.room(self.rounds.calls)
            self._measure_rounds(min(rounds - done, room, round(CHUNK_S / round_s)))

    def _measure_rounds(self, count: int) -> None:
        """Measure `count` rounds, at least one, while other processes may not use the device. The order within each
        round is secret. Every second round has an empty request."""
        of_round: list[Party] = ["reference", "candidate", "empty"]
        sizes = [3 - place % 2 for place in range(max(1, count))]
        parties = [party for size in sizes for party in secrets.SystemRandom().sample(of_round[:size], size)]
        for party, answer in zip(parties, self.requester.answers(parties, self.rounds.calls), strict=True):
            self.rounds.taken_s[party].append(answer.taken_s)
            self.rounds.launching_s[party].append(answer.launching_s)

    def _refuse_below_floor(self) -> None:
        """Raise Judged if a call is faster than its outputs can be written to memory.

        Only outputs that do not fit into the cache count: a candidate may read and compute less than the reference
        does. If even the reference is faster than that, too much was subtracted from its time, and so from the
        candidate's.
        """
        if self.kind != "cuda":
            return
        empty_s = self.speedup.empty_s
        reference_s, call_s = (
            statistics.median(self.speedup.calls_s(party, empty_s)) for party in ("reference", "candidate")
        )
        facts = gpu_facts(self.device)
        written = sum(spec.nbytes for spec in self.variant.output_specs)
        least_s = min(least_time_s(written, facts.l2_bytes, facts.bandwidth), 0.9 * reference_s)
        if call_s < least_s:
            raise Judged(
                Outcome.REJECTED,
                f"a call takes {1e3 * call_s:.3g} ms, and writing its outputs alone takes {1e3 * least_s:.3g} ms",
            )

    def _free_memory(self) -> None:
        """Return unused memory to the GPU if there is much. The driver could do it later, during timing."""
        if has_much_to_free(self.device):
            with self.turns.shared():
                free_memory(self.device)

    # ---- the result

    @property
    def speedup(self) -> Speedup:
        """The speedup according to the times measured so far."""
        assert self.before is not None
        return Speedup(self.rounds, self.before, self.afterwards, self.task.known.fastest_s, self.could_reach_runner)

    @property
    def needs_reference_alone(self) -> bool:
        """Whether the reference must be timed again after the candidate's processes have ended."""
        return self.speedup.is_slow or not self.speedup.is_sure

    def findings(self) -> dict[str, Any]:
        """Return fields of the verdict."""
        compiled_ms = None if self.compiled_s is None else self.compiled_s * 1e3
        launches = self.task.launches() if self.kind == "cuda" else 1
        return {**replace(self.speedup, launches=launches).findings(), "reference_compile_ms": compiled_ms}


def least_time_s(written: int, l2_bytes: int, bandwidth: float) -> float:
    """Return the shortest time in which outputs can be written, in seconds, if the cache keeps as much as it can.

    Args:
        written: bytes of the outputs.
        l2_bytes: size of the cache in bytes.
        bandwidth: bytes a second.

    >>> least_time_s(150 * 10**6, 50 * 10**6, 1e12), least_time_s(10, 50, 1e12)
    (9e-05, 0.0)
    """
    return 0.9 * max(written - l2_bytes, 0) / bandwidth
