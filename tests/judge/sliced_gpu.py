"""A GPU that processes have in turn, for a slice of time each, and the judge's clock on it. Nothing is computed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from kernel_coder.judge.examiner.timing import timer as timing
from kernel_coder.judge.examiner.timing.timer import Answer, Timer, Times
from kernel_coder.judge.gpu.contention import STEPS

FLUSH_S, HOST_S, NEXT_TO_NOTHING_S = 64e-6, 20e-6, 3e-6


class Burst(NamedTuple):
    """Work for so long, then none for so long, again and again."""

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
    """Who has work gets a slice when everybody else who has some had one; to change takes time. Who is alone has
    one slice after another."""

    def __init__(self, slice_s: float, switch_s: float = 1e-4) -> None:
        self.slice_s, self.switch_s = slice_s, switch_s
        self.now, self.owner, self.left_s = 0.0, "", slice_s
        self.burners: dict[str, Burst] = {}

    def work(self, who: str, seconds: float) -> None:
        """Of a process, until it is done."""
        while seconds > 1e-12:
            busy, changes_s = self._busy()
            busy |= {who}
            if self.owner not in busy or (self.left_s <= 1e-12 and len(busy) > 1):
                self._hand_over(busy)
                continue
            step = min(changes_s, self.left_s if len(busy) > 1 else math.inf)
            if self.owner == who:
                step = min(step, seconds)
                seconds -= step
            self._pass(step, len(busy) == 1)

    def idle(self, seconds: float) -> None:
        """The host's time; only burners use the GPU."""
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


class Party:
    """Of the two whose requests are timed."""

    left_s, life_s = 1e3, 0.0


class SlicedTimer(Timer):
    """Requests of the judge's timer on such a GPU. The candidate takes `candidate` times as long as the reference, and
    burns while it is not asked if it `burns`."""

    def __init__(
        self, gpu: SlicedGpu, call_s: float, copying_s: float, calls: int, candidate: float = 1.0, burns: bool = False
    ) -> None:
        self.gpu, self.call_s, self.copy_s = gpu, call_s, copying_s
        self.factor, self.burns, self.is_alive = candidate, burns, False
        self.reference, self.candidate = Party(), Party()  # type: ignore[assignment]
        config = SimpleNamespace(timed_calls=calls, timing_s=math.inf, compile_baseline=False)
        device = SimpleNamespace(type="cuda")
        self.session = SimpleNamespace(lock=None, device=device, config=config, source="")  # type: ignore[assignment]
        self.problem = SimpleNamespace(rhythm=(calls, 1e-3), reference_s=math.inf)  # type: ignore[assignment]
        self.variant = SimpleNamespace(input_stride=0)  # type: ignore[assignment]
        self.calls, self.round_s, self.times = calls, 1e-3, Times([], {}, {})
        self.baseline = self.afterwards = self.compiled_s = None
        self.flushed = torch.empty(0)

    def _request(self, link: Any, work_s: float) -> float:  # type: ignore[override]
        is_candidate = link is self.candidate
        if is_candidate:
            self.gpu.burners.pop("candidate", None)
        self.gpu.idle(5e-4 * random.lognormvariate(0, 0.1))  # outputs are filled, launches get in line
        began = self.gpu.now
        self.gpu.work("examiner", FLUSH_S)
        self.gpu.work("candidate" if is_candidate else "reference", work_s * random.lognormvariate(0, 0.01))
        self.gpu.idle(HOST_S * random.lognormvariate(0, 0.1))
        self.gpu.work("examiner", 10e-6)
        taken = self.gpu.now - began
        if self.burns and self.is_alive:
            self.gpu.burners["candidate"] = Burst()
        return taken

    def _ping(self, link: Any) -> float:
        return self._request(link, NEXT_TO_NOTHING_S)

    def _answers(
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
            call_s = self.call_s * (self.factor if link is self.candidate else 1.0)
            taken = self._request(link, calls * (call_s + self.copy_s))
            found.append(Answer(link, None, taken, 0.0, nothing, nothing, None))
        if then is not None:
            then()
        return found

    def _together(self, calls: int, count: int) -> int:
        return max(1, min(count, round(timing.CHUNK_S / (2 * calls * self.call_s))))

    def _copying_s(self, calls: int) -> list[float]:
        found = []
        for _ in range(5):
            self.gpu.work("examiner", FLUSH_S + calls * 10e-6)
            began = self.gpu.now
            self.gpu.work("examiner", calls * self.copy_s)
            found.append((self.gpu.now - began) / calls)
        return found

    def _showing_s(self, calls: int) -> list[float]:
        return [0.0]

    def _load(self) -> float:
        self.gpu.idle(2e-4)  # launches get in line
        began = self.gpu.now
        self.gpu.work("examiner", STEPS * FLUSH_S)
        return (self.gpu.now - began) / (STEPS * FLUSH_S)

    def _free_memory(self) -> None:
        pass

    def _find_rhythm(self, link: Any, empty_s: float, *known_s: float) -> None:
        pass

    def _refuse_below_floor(self, reference_s: float, call_s: float) -> None:
        pass

    def verdict(
        self, before: dict[str, Burst], in_turn: dict[str, Burst], afterwards: dict[str, Burst]
    ) -> dict[str, Any]:
        """As a session has it, with somebody else's work on the GPU in each part."""
        self.gpu.burners = dict(before)
        self.gpu.idle(random.uniform(0.0, 0.1))
        baseline = self.measure_baseline()
        self.gpu.burners, self.is_alive = dict(in_turn), True
        if self.burns:
            self.gpu.burners["candidate"] = Burst()
        self.gpu.idle(0.01)
        self.measure(baseline)
        self.gpu.burners, self.is_alive = dict(afterwards), False
        if self.is_slow or not self.is_sure:
            self.measure_afterwards()
        return self.findings()


@contextmanager
def clock_of(gpu: SlicedGpu) -> Iterator[None]:
    """The timer's clock is the GPU's; who sleeps leaves it to others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.time, "monotonic", lambda: gpu.now)
        patch.setattr(timing.time, "sleep", gpu.idle)
        patch.setattr(Timer, "restless_until", 0.0)
        yield
