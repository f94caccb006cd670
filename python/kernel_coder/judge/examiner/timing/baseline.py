"""The reference alone, timed while no candidate is there and, on a GPU, while no other program uses it."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.timing.answers import Requester
from kernel_coder.judge.examiner.timing.rhythm import rounds_together
from kernel_coder.judge.examiner.timing_constants import (
    BASELINE_S,
    BUSY_S,
    MAX_PAUSE_S,
    PIECES,
    QUIET_POLL_S,
    QUIET_S,
    QUIET_TRIES,
    SHARED_PROBES,
)
from kernel_coder.judge.examiner.timing_records import Baseline, Costs, Rhythm
from kernel_coder.judge.gpu.contention import LOADED
from kernel_coder.judge.gpu.turns import GpuTurns


class BaselineTimer:
    """Times the reference without a candidate."""

    def __init__(self, task: PreparedTask, requester: Requester, reference: Link, turns: GpuTurns) -> None:
        self.task, self.requester, self.reference, self.turns = task, requester, reference, turns
        self.clock, self.kind = requester.clock, task.device.type

    def measure(self, rhythm: Rhythm, rounds: int, pings: int) -> Baseline:
        """Time the reference. The task remembers its fastest time on a GPU that no other program used.

        Args:
            rhythm: how requests are made.
            rounds: requests.
            pings: requests that do next to nothing.
        """
        empty_s: list[float] = []
        by_call: list[tuple[list[float], list[float]]] = []
        pings_of_piece = pings if self.kind == "cpu" else -(-pings // PIECES)

        def measure_costs(is_first: bool) -> None:  # not before the requests: a GPU that was idle is slow at first
            if is_first:
                empty_s.clear()
            empty_s.extend(self.clock.ping(self.reference) for _ in range(pings_of_piece))
            if is_first:
                copying_s = self.clock.copying_s(rhythm.calls, self.reference.outputs)
                by_call.append((copying_s, self.clock.showing_s(rhythm.calls)))

        taken, is_quiet = self.taken_alone(rhythm, rounds, measure_costs)
        least = Costs(min(empty_s), *(min(map(min, some)) for some in zip(*by_call, strict=True)))
        costs = least._replace(empty_s=statistics.median(empty_s)) if is_quiet else least
        stride = self.task.variants[0].input_stride
        call_s, fastest_s = (costs.call_s(one, rhythm.calls, stride) for one in (statistics.median(taken), min(taken)))
        if self.kind == "cpu":  # there a process is faster or slower than usual for seconds
            fastest_s = call_s
        elif is_quiet:
            self.task.known.fastest_s = min(self.task.known.fastest_s, call_s)
        return Baseline(call_s, fastest_s, costs, least, time.monotonic(), self.kind, is_quiet)

    def taken_alone(
        self, rhythm: Rhythm, rounds: int, measure_costs: Callable[[bool], None]
    ) -> tuple[list[float], bool]:
        """Seconds of requests to the reference, and whether no other program used the GPU. If one did, they are made
        again, since that program may have ended by then."""
        for left in reversed(range(1 if self.is_gpu_busy else QUIET_TRIES)):
            taken, is_quiet = self.taken_in_pieces(rhythm, rounds, measure_costs)
            if is_quiet or not left:
                break
            self.await_quiet()
        if not is_quiet and not self.is_gpu_busy:
            self.turns.busy_until = time.monotonic() + BUSY_S
            print(
                "another program uses the GPU, also while the reference is timed without a candidate", file=sys.stderr
            )
        return taken, is_quiet

    def taken_in_pieces(
        self, rhythm: Rhythm, rounds: int, measure_costs: Callable[[bool], None]
    ) -> tuple[list[float], bool]:
        """The same, once. `measure_costs` is called in each piece, with whether that is the first."""
        taken: list[float] = []
        loads: list[float] = []

        def probe() -> None:
            loads.append(self.clock.load())

        def after_piece() -> None:
            is_first = not taken
            if is_first:  # the costs of requests are measured between the first two probes
                measure_costs(True)
            probe()
            if not is_first:
                measure_costs(False)

        until = time.monotonic() + BASELINE_S
        rounds_of_piece = rounds if self.kind == "cpu" else -(-rounds // PIECES)
        while not taken or (len(taken) < rounds and time.monotonic() < until):
            if taken and self.kind != "cpu":
                time.sleep(random.uniform(0.0, MAX_PAUSE_S))
            count = rounds_together(self.requester, rhythm, min(rounds_of_piece, rounds - len(taken)))
            links = [self.reference] * count
            answers = self.requester.answers(links, rhythm.calls, timed=True, first=probe, then=after_piece)
            taken += [one.taken_s for one in answers]
        is_shared = [one >= LOADED for one in loads]
        return taken, not any(is_shared[:2]) and sum(is_shared) <= SHARED_PROBES * len(loads)

    def await_quiet(self) -> None:
        """Wait until no other program uses the GPU, at most :data:`QUIET_S`. That counts as waiting for the device."""
        until = time.monotonic() + QUIET_S
        while True:
            with self.turns.alone():
                if self.clock.load() < LOADED:
                    return
            if time.monotonic() >= until:
                return
            self.turns.sleep(QUIET_POLL_S)

    @property
    def is_gpu_busy(self) -> bool:
        """Whether another program used the GPU for long, a short while ago. Then nothing waits for it to end."""
        return time.monotonic() < self.turns.busy_until
