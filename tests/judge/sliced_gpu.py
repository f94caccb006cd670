"""A simulated GPU that processes use in turn, for a slice of time each, and the judge's timer on it. Nothing is
computed."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from kernel_coder.judge.examiner.timing.clock import Answer
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.examiner.timing_records import Party, ReferenceTiming, Rounds
from kernel_coder.judge.gpu.contention import PROBE_STEPS
from kernel_coder.judge.gpu.turns import GpuTurns

FLUSH_S = 64e-6


class Burst(NamedTuple):
    """A program that works for `on_s`, then rests for `off_s`, again and again."""

    on_s: float = math.inf
    off_s: float = 0.0
    from_s: float = 0.0

    def at(self, now: float) -> tuple[bool, float]:
        """Return whether the program works at this time, and for how many seconds that does not change."""
        if math.isinf(self.on_s):
            return True, math.inf
        place = (now + self.from_s) % (self.on_s + self.off_s)
        if place < self.on_s:
            return True, self.on_s - place
        return False, self.on_s + self.off_s - place


class SlicedGpu:
    """A GPU that gives each process with work a slice in turn. Every change of the process takes `switch_s`. If only
    one process has work, it gets one slice after another."""

    def __init__(self, slice_s: float, switch_s: float = 1e-4) -> None:
        self.slice_s, self.switch_s = slice_s, switch_s
        self.now, self.owner, self.left_s = 0.0, "", slice_s
        self.burners: dict[str, Burst] = {}

    def work(self, process: str, seconds: float) -> None:
        """Let a process work until it has used the GPU for so many seconds."""
        while seconds > 1e-12:
            busy, changes_s = self._busy()
            busy |= {process}
            if self.owner not in busy or (self.left_s <= 1e-12 and len(busy) > 1):
                self._hand_over(busy)
                continue
            step = min(changes_s, self.left_s if len(busy) > 1 else math.inf)
            if self.owner == process:
                step = min(step, seconds)
                seconds -= step
            self._pass(step, len(busy) == 1)

    def idle(self, seconds: float) -> None:
        """Let time pass in which only burners use the GPU."""
        until = self.now + seconds
        while self.now < until - 1e-12:
            busy, changes_s = self._busy()
            if busy and (self.owner not in busy or (self.left_s <= 1e-12 and len(busy) > 1)):
                self._hand_over(busy)
                continue
            step = min(changes_s, until - self.now, self.left_s if len(busy) > 1 else math.inf)
            self._pass(step, len(busy) == 1)

    def _busy(self) -> tuple[set[str], float]:
        found = {name: burst.at(self.now) for name, burst in self.burners.items()}
        changes_s = min((left for _, left in found.values()), default=math.inf)
        return {name for name, (is_on, _) in found.items() if is_on}, max(changes_s, 1e-7)

    def _hand_over(self, busy: set[str]) -> None:
        after = sorted(busy - {self.owner}) or [self.owner]
        self.owner = next((name for name in after if name > self.owner), after[0])
        self.now += self.switch_s
        self.left_s = self.slice_s

    def _pass(self, seconds: float, is_alone: bool) -> None:
        self.now += seconds
        self.left_s -= seconds
        if self.left_s <= 0.0:
            self.left_s = self.slice_s - (-self.left_s % self.slice_s) if is_alone else 0.0


class SlicedRequests:
    """Requests of the judge's timer on a simulated GPU, with the interface of ``Requester`` and ``RequestClock``."""

    def __init__(self, gpu: SlicedGpu, call_s: dict[Party, float], copy_s: float) -> None:
        self.gpu, self.call_s, self.copy_s = gpu, call_s, copy_s
        self.burns = False
        """Whether the candidate keeps the GPU busy between requests to it."""

        self.clock = self

    def room(self, calls: int) -> int:
        return 1000

    def free_memory(self) -> None:
        """The task is small."""

    def answers(
        self, parties: list[Party], calls: int, *, timed: bool = True, around: Callable[[], None] | None = None
    ) -> list[Answer]:
        found = []
        if around is not None:
            around()
        for party in parties:
            count = 1 if party == "single" else calls
            found.append(Answer(self._request(party, count * (self.call_s.get(party, 0.0) + self.copy_s)), 0.0))
        if around is not None:
            around()
        return found

    def _request(self, party: Party, work_s: float) -> float:
        is_candidate = party == "candidate"
        if is_candidate:
            self.gpu.burners.pop("candidate", None)
        self.gpu.idle(5e-4 * random.lognormvariate(0, 0.1))  # outputs are filled, launches get in line
        self.gpu.work("examiner", 1e-6)
        began = self.gpu.now
        self.gpu.work("examiner", FLUSH_S)
        self.gpu.work("candidate" if is_candidate else "reference", work_s * random.lognormvariate(0, 0.003) + 1e-6)
        self.gpu.work("examiner", 10e-6 * random.lognormvariate(0, 0.05))
        taken_s = self.gpu.now - began
        if self.burns:
            self.gpu.burners["candidate"] = Burst()
        return taken_s

    def load(self) -> float:
        self.gpu.idle(2e-4)  # launches get in line
        began = self.gpu.now
        self.gpu.work("examiner", PROBE_STEPS * FLUSH_S)
        return (self.gpu.now - began) / (PROBE_STEPS * FLUSH_S)


class SlicedTimer(Timer):
    """The judge's timer on a simulated GPU. The candidate takes `candidate` times as long as the reference. If it
    `burns`, it keeps the GPU busy between requests to it."""

    def __init__(
        self, gpu: SlicedGpu, call_s: float, copying_s: float, slots: int, candidate: float = 1.0, burns: bool = False
    ) -> None:
        self.gpu, self.burns, self.kind, self.could_reach_runner = gpu, burns, "cuda", False
        self.variant = SimpleNamespace(slots=slots)  # type: ignore[assignment]
        self.task = SimpleNamespace(known=ReferenceTiming(), launches=lambda: 1)  # type: ignore[assignment]
        self.config = SimpleNamespace(timed_calls=100, timing_s=math.inf, compile_baseline=False)  # type: ignore[assignment]
        self.requests = SlicedRequests(gpu, {"reference": call_s, "candidate": candidate * call_s}, copying_s)
        self.requester, self.turns = self.requests, GpuTurns()  # type: ignore[assignment]
        self.reference = SimpleNamespace(time_limit_s=0.0)  # type: ignore[assignment]
        self.rounds, self.before, self.afterwards, self.compiled_s = Rounds(), None, None, None

    def _measure_gpu(self) -> None:
        pass

    def _free_memory(self) -> None:
        pass

    def _refuse_below_floor(self) -> None:
        pass

    def verdict(
        self, before: dict[str, Burst], in_turn: dict[str, Burst], afterwards: dict[str, Burst]
    ) -> dict[str, Any]:
        """Return the findings of an examination, with other programs' work on the GPU in each of its parts."""
        self.gpu.burners = dict(before)
        self.gpu.idle(random.uniform(0.0, 0.1))
        baseline = self.measure_baseline()
        self.gpu.burners, self.requests.burns = dict(in_turn), self.burns
        if self.burns:
            self.gpu.burners["candidate"] = Burst()
        self.gpu.idle(0.01)
        self.measure(baseline)
        self.gpu.burners, self.requests.burns = dict(afterwards), False
        if self.needs_reference_alone:
            self.measure_afterwards()
        return self.findings()


@contextmanager
def clock_of(gpu: SlicedGpu) -> Iterator[None]:
    """Make the timer use the GPU's clock. While the timer sleeps, other programs use the GPU. The order within rounds,
    which is secret elsewhere, follows the test's seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "SystemRandom", lambda: random)
        patch.setattr(time, "monotonic", lambda: gpu.now)
        patch.setattr(time, "sleep", gpu.idle)
        yield
