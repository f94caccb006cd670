"""A simulated GPU that processes have in turn, for a slice of time each, and the judge's clock on it. Nothing is
computed."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from kernel_coder.judge.examiner.timing.baseline import BaselineTimer
from kernel_coder.judge.examiner.timing.clock import Answer
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.examiner.timing_records import ReferenceTiming, Rhythm, TimesInTurn
from kernel_coder.judge.gpu.contention import STEPS
from kernel_coder.judge.gpu.turns import GpuTurns

FLUSH_S, HOST_S, NEXT_TO_NOTHING_S = 64e-6, 20e-6, 3e-6


class Burst(NamedTuple):
    """A program that works for `on_s`, then rests for `off_s`, again and again."""

    on_s: float = math.inf
    off_s: float = 0.0
    from_s: float = 0.0

    def at(self, now: float) -> tuple[bool, float]:
        """Whether there is work, and for how long that stays so."""
        if math.isinf(self.on_s):
            return True, math.inf
        place = (now + self.from_s) % (self.on_s + self.off_s)
        if place < self.on_s:
            return True, self.on_s - place
        return False, self.on_s + self.off_s - place


class SlicedGpu:
    """Processes with work get one slice each in turn, and every change of the process takes `switch_s`. A process that
    is alone has one slice after another."""

    def __init__(self, slice_s: float, switch_s: float = 1e-4) -> None:
        self.slice_s, self.switch_s = slice_s, switch_s
        self.now, self.owner, self.left_s = 0.0, "", slice_s
        self.burners: dict[str, Burst] = {}

    def work(self, process: str, seconds: float) -> None:
        """Let a process work until it has had the GPU for so long."""
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


class FakeLink:
    """To one of the two whose requests are timed."""

    left_s, life_s, outputs = 1e3, 0.0, None


class SlicedRequests:
    """Requests of the judge's timer on such a GPU, with the interface of ``Requester`` and ``RequestClock``."""

    def __init__(self, gpu: SlicedGpu, task: Any, call_s: dict[FakeLink, float], copy_s: float) -> None:
        self.gpu, self.call_s, self.copy_s = gpu, call_s, copy_s
        self.candidate = list(call_s)[-1]
        self.burns = False
        """Whether the candidate burns while it is not asked."""

        self.turns, self.clock = GpuTurns(), self
        self.checker, self.maker = SimpleNamespace(task=task), SimpleNamespace(bytes_of=lambda calls: 1)

    def _request(self, link: FakeLink, work_s: float) -> float:
        is_candidate = link is self.candidate
        if is_candidate:
            self.gpu.burners.pop("candidate", None)
        self.gpu.idle(5e-4 * random.lognormvariate(0, 0.1))  # outputs are filled, launches get in line
        began = self.gpu.now
        self.gpu.work("examiner", FLUSH_S)
        self.gpu.work("candidate" if is_candidate else "reference", work_s * random.lognormvariate(0, 0.01))
        self.gpu.idle(HOST_S * random.lognormvariate(0, 0.1))
        self.gpu.work("examiner", 10e-6)
        taken_s = self.gpu.now - began
        if self.burns:
            self.gpu.burners["candidate"] = Burst()
        return taken_s

    def ping(self, link: FakeLink) -> float:
        return self._request(link, NEXT_TO_NOTHING_S)

    def answers(
        self,
        links: list[Any],
        calls: int,
        *,
        timed: bool,
        first: Callable[[], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> list[Answer]:
        nothing, found = torch.empty(0), []
        if first is not None:
            first()
        for link in links:
            taken_s = self._request(link, calls * (self.call_s[link] + self.copy_s))
            found.append(Answer(link, None, taken_s, 0.0, nothing, nothing, None))
        if then is not None:
            then()
        return found

    def copying_s(self, calls: int, outputs: object) -> list[float]:
        found = []
        for _ in range(5):
            self.gpu.work("examiner", FLUSH_S + calls * 10e-6)
            began = self.gpu.now
            self.gpu.work("examiner", calls * self.copy_s)
            found.append((self.gpu.now - began) / calls)
        return found

    def showing_s(self, calls: int) -> list[float]:
        return [0.0]

    def load(self) -> float:
        self.gpu.idle(2e-4)  # launches get in line
        began = self.gpu.now
        self.gpu.work("examiner", STEPS * FLUSH_S)
        return (self.gpu.now - began) / (STEPS * FLUSH_S)


class SlicedTimer(Timer):
    """The judge's timer on such a GPU. The candidate takes `candidate` times as long as the reference, and burns while
    it is not asked if it `burns`."""

    def __init__(
        self, gpu: SlicedGpu, call_s: float, copying_s: float, calls: int, candidate: float = 1.0, burns: bool = False
    ) -> None:
        self.gpu, self.burns = gpu, burns
        reference: Any = FakeLink()
        other: Any = FakeLink()
        self.reference, self.candidate = reference, other
        self.rhythm = Rhythm(calls, 2 * calls * call_s)
        self.kind, self.could_reach_runner = "cuda", False
        self.variant = SimpleNamespace(input_stride=0)  # type: ignore[assignment]
        known = ReferenceTiming(rhythm=self.rhythm)
        device = SimpleNamespace(type=self.kind)
        self.task = SimpleNamespace(device=device, variants=[self.variant], known=known)  # type: ignore[assignment]
        self.config = SimpleNamespace(timed_calls=calls, timing_s=math.inf, compile_baseline=False)  # type: ignore[assignment]
        self.requests = SlicedRequests(gpu, self.task, {reference: call_s, other: candidate * call_s}, copying_s)
        self.requester, self.turns = self.requests, self.requests.turns  # type: ignore[assignment]
        self.alone = BaselineTimer(self.task, self.requester, self.reference, self.turns)
        self.times, self.before, self.afterwards, self.compiled_s = TimesInTurn(), None, None, None

    def _measure_gpu(self) -> None:
        pass

    def _free_memory(self) -> None:
        pass

    def _find_rhythm(self, link: Any, empty_s: float, *known_s: float) -> Rhythm:
        return self.rhythm

    def _refuse_below_floor(self, reference_s: float, call_s: float) -> None:
        pass

    def verdict(
        self, before: dict[str, Burst], in_turn: dict[str, Burst], afterwards: dict[str, Burst]
    ) -> dict[str, Any]:
        """As an examination has it, with other programs' work on the GPU in each part."""
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
    """The timer's clock is the GPU's; while it sleeps, others use the GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: gpu.now)
        patch.setattr(time, "sleep", gpu.idle)
        yield
