"""The clock: how many calls a request has, when it starts, and which of the reference's times count."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.timing import rhythm as rhythms
from kernel_coder.judge.examiner.timing.answers import Requester
from kernel_coder.judge.examiner.timing.baseline import BaselineTimer
from kernel_coder.judge.examiner.timing.clock import Answer, RequestClock, Start
from kernel_coder.judge.examiner.timing.estimate import Estimate
from kernel_coder.judge.examiner.timing.interval import speedup_interval
from kernel_coder.judge.examiner.timing.requests import Expected, Request, RequestMaker
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.examiner.timing_constants import (
    BUSY_S,
    CANARIES,
    HOST_NOISE,
    HOST_S,
    MIN_CALL_S,
    MIN_SHARE,
    PIECES,
    QUEUE_S,
    QUIET_POLL_S,
    QUIET_S,
    QUIET_TRIES,
    SHOWN_BYTES,
    SPARE_S,
    STRANGE_EVERY,
    TIMING,
    UNSURE,
)
from kernel_coder.judge.examiner.timing_records import (
    Baseline,
    Costs,
    Party,
    ReferenceTiming,
    Rhythm,
    TimesInTurn,
)
from kernel_coder.judge.gpu.contention import LOADED
from kernel_coder.judge.gpu.stream_gate import gate_of, wait_for, write_later
from kernel_coder.judge.gpu.turns import GpuTurns
from kernel_coder.judge.wire.channel import Channel
from kernel_coder.judge.wire.messages import Mode, Say, Status, TensorSpec
from kernel_coder.tasks import Task

NOISE = (1.0, 0.99, 1.01, 1.0, 1.02, 0.98)
GPU, CPU = TIMING["cuda"], TIMING["cpu"]


def baseline(call_s: float, kind: str = "cuda", empty_s: float = 0.0, is_quiet: bool = True) -> Baseline:
    return Baseline(call_s, call_s, Costs(empty_s), Costs(empty_s), time.monotonic(), kind, is_quiet=is_quiet)


def times_in_turn(reference_s: float, candidate_s: float) -> TimesInTurn:
    """Of nine calls a request."""
    return TimesInTurn([(9 * reference_s * one, 9 * candidate_s * one) for one in NOISE * 3])


def estimate(
    reference_s: float, candidate_s: float, before_s: float, afterwards_s: float | None = None, kind: str = "cuda"
) -> Estimate:
    """From seconds of a call of both in turn, and of the reference alone before and, if given, afterwards."""
    return Estimate(
        kind=kind,
        calls=9,
        input_stride=0,
        times=times_in_turn(reference_s, candidate_s),
        before=baseline(before_s, kind),
        afterwards=None if afterwards_s is None else baseline(afterwards_s, kind),
    )


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize(("slower", "expected"), [(-2.0, False), (-0.1, False), (0.1, True)])
def test_a_reference_that_is_slower_than_without_the_candidate_is_noticed(
    kind: str, slower: float, expected: bool
) -> None:
    assert estimate(2.0 * max(TIMING[kind].slow + slower, 0.9), 1.0, 2.0, kind=kind).is_slow is expected


def test_two_threads_on_one_core_are_not_the_candidate_s_doing() -> None:
    """One and a half times as slow in turn as before and after: what both took then counts."""
    found = estimate(3.0, 3.0, 2.0, 2.0, kind="cpu").findings()
    assert found["speedup"] == pytest.approx(1.0)
    wider = 1 + CPU.call_noise
    assert found["speedup_low"] == pytest.approx(2 / 3 / wider, rel=0.01)  # sure is what holds without the candidate
    assert found["speedup_high"] == pytest.approx(wider, rel=0.01)
    assert max(found["reference_runtimes_ms"]) > 2900


def test_what_requests_differ_by_is_no_slowness() -> None:
    assert not estimate(1.0 + 1.9 * GPU.request_noise_s / 9, 1.0, 1.0).is_slow
    tiny = 4e-6
    assert not estimate(tiny + 1.9 * GPU.request_noise_s / 9, tiny, tiny).is_slow
    assert estimate(tiny + 2.1 * GPU.request_noise_s / 9, tiny, tiny).is_slow


@pytest.mark.parametrize(("slow", "expected"), [(11, False), (14, False), (15, True), (18, True)])
def test_a_few_slow_requests_make_no_slow_reference_but_count_as_no_slower_than_it_may_be(
    slow: int, expected: bool
) -> None:
    """Of eighteen requests. A candidate that slows most of them, and leaves some alone, gains nothing by being
    overlooked."""
    found = estimate(2.0, 2.0, 2.0)
    pairs = found.times.pairs
    found = replace(found, times=TimesInTurn([(3.0 * one, other) for one, other in pairs[:slow]] + pairs[slow:]))
    assert found.is_slow is expected
    if expected:
        found = replace(found, afterwards=baseline(2.0))
    says = found.findings()
    assert says["speedup"] == pytest.approx(1.0 if expected else GPU.slow, rel=0.03)
    assert says["reference_ms"] == pytest.approx(2000.0 * (1.0 if expected else GPU.slow))
    assert says["speedup_low"] < 1.0


def test_a_reference_that_is_fast_again_when_the_candidate_has_ended_counts_as_it_is_then() -> None:
    found = estimate(4.0, 2.0, 2.0, 2.0).findings()
    assert found["speedup"] == pytest.approx(1.0)
    assert found["speedup_low"] <= 1 <= found["speedup_high"]
    assert found["reference_ms"] == pytest.approx(2000)
    assert max(found["reference_runtimes_ms"]) < 2100


def test_a_reference_that_stays_slow_was_slowed_by_another_program_but_how_much_is_not_sure() -> None:
    """A program that came after the reference was timed alone may have come to help the candidate."""
    found = estimate(4.0, 2.0, 2.0, 4.0).findings()
    assert found["speedup"] == pytest.approx(2.0)
    assert found["reference_ms"] == pytest.approx(4000)
    assert found["speedup_low"] == pytest.approx(1.0, rel=0.05)
    assert estimate(4.0, 2.0, 4.0, 4.0).findings()["speedup_low"] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("before_s", "afterwards_s"), [(2.5, 2.0), (2.0, 2.5)])
def test_a_reference_that_was_fast_before_and_after_counts_as_the_slower_of_both(
    before_s: float, afterwards_s: float
) -> None:
    found = estimate(4.0, 2.0, before_s, afterwards_s).findings()
    assert found["speedup"] == pytest.approx(1.25)
    assert found["reference_ms"] == pytest.approx(2500)
    assert found["speedup_low"] == pytest.approx(1.0, rel=0.05)


def test_what_is_sure_is_sure_by_the_faster_reference() -> None:
    """Below what counts as slowed down, a candidate gains nothing by slowing down the reference."""
    even, slowed = estimate(2.0, 2.0, 2.0).findings(), estimate(2.3, 2.0, 2.0).findings()
    assert slowed["speedup"] == pytest.approx(1.15)
    assert slowed["speedup_low"] == pytest.approx(even["speedup_low"])
    faster_before = estimate(2.0, 2.0, 4.0).findings()
    assert faster_before == even


def test_no_candidate_is_surely_faster_than_a_reference_that_was_never_alone() -> None:
    """Candidates, say, each of which leaves work to the GPU: the reference is slow before, in turn, and after."""
    found = estimate(8.0, 4.0, 8.0, 8.0)
    assert found.is_sure
    assert found.findings()["speedup_low"] == pytest.approx(2.0, rel=0.05)
    busy = baseline(8.0, is_quiet=False)
    found = replace(found, before=busy, afterwards=busy)
    assert not found.is_sure
    assert found.findings()["speedup"] == pytest.approx(2.0)
    assert found.findings()["speedup_low"] == UNSURE < 1
    found = replace(found, fastest_s=2.0)  # when it was timed for another candidate
    assert found.is_sure
    assert found.is_slow
    assert found.findings()["speedup_low"] == pytest.approx(0.5, rel=0.05)
    found = replace(found, fastest_s=math.inf, afterwards=baseline(2.0))  # the other programs have ended
    assert found.is_sure
    assert found.findings()["speedup"] == pytest.approx(0.5)
    assert found.findings()["speedup_low"] == pytest.approx(0.5, rel=0.05)


def test_what_is_sure_is_sure_by_the_fastest_request_too() -> None:
    """A program that burns in bursts makes some of them slow, and so their median."""
    found = estimate(2.0, 2.0, 2.0)
    even = found.findings()
    found = replace(found, before=baseline(2.0)._replace(fastest_s=1.0))
    assert found.findings()["speedup"] == even["speedup"]
    assert found.findings()["speedup_low"] == pytest.approx(even["speedup_low"] / 2)


def test_a_baseline_of_a_gpu_that_another_program_used_is_none_for_the_next_candidate() -> None:
    now = baseline(1.0)
    assert now.is_fresh
    assert not now._replace(is_quiet=False).is_fresh
    assert not now._replace(measured_at=now.measured_at - GPU.baseline_life_s).is_fresh


def task_of(kind: str, **more: Any) -> Any:
    """What the clock asks of a prepared task, on a device of this kind."""
    variant = SimpleNamespace(**{"slots": 64, "input_stride": 0, "output_stride": 0, **more.pop("variant", {})})
    known = ReferenceTiming()
    return SimpleNamespace(device=SimpleNamespace(type=kind), variants=[variant], known=known, **more)


class FakeRequests:
    """Requests to a reference that take a second each, on a GPU whose load is known."""

    def __init__(self, loads: list[float], turns: GpuTurns, kind: str = "cuda") -> None:
        self.loads, self.turns, self.prepared = deque(loads), turns, 0
        self.checker = SimpleNamespace(task=task_of(kind))
        self.maker = SimpleNamespace(bytes_of=lambda calls: 1)
        self.clock = self

    def load(self) -> float:
        return self.loads.popleft()

    def answers(
        self, links: list[Any], calls: int, *, timed: bool, first: Any = None, then: Any = None
    ) -> list[Answer]:
        assert timed
        first()
        then()
        nothing = torch.empty(0)
        return [Answer(link, None, 1.0, 0.0, nothing, nothing, None) for link in links]


RHYTHM = Rhythm(calls=9, round_s=1e-3)


def without_candidate(loads: list[float], turns: GpuTurns) -> Any:
    requests: Any = FakeRequests(loads, turns)
    reference: Any = SimpleNamespace(outputs=None)
    return BaselineTimer(requests.checker.task, requests, reference, turns)


class InTurn(Timer):
    """Times of tries that were made beforehand, and a GPU whose load is known."""

    def __init__(
        self, tries: list[tuple[float, float]], loads: list[float], turns: GpuTurns, left_s: float = 1e3
    ) -> None:
        self.tries, self.turns = deque(tries), turns
        self.alone = without_candidate(loads, turns)
        self.task, self.kind, self.device = self.alone.task, "cuda", self.alone.task.device
        self.variant = self.task.variants[0]
        self.candidate = SimpleNamespace(left_s=left_s)  # type: ignore[assignment]
        self.config = SimpleNamespace(timed_calls=9, timing_s=1.0)  # type: ignore[assignment]
        self.afterwards, self.could_reach_runner = None, False

    def _find_rhythm(self, link: Link, empty_s: float, *known_s: float) -> Rhythm:
        return RHYTHM

    def _free_memory(self) -> None:
        pass

    def _refuse_below_floor(self, reference_s: float, call_s: float) -> None:
        self.reference_s, self.call_s = reference_s, call_s

    def _measure_in_turn(self) -> None:
        self.times = times_in_turn(*self.tries.popleft())


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> GpuTurns:
    """Turns without a lock, in a process that never sleeps: the clock goes on by as much instead."""
    slept: list[float] = []
    began = time.monotonic()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: began + sum(slept))
    return GpuTurns()


def measured(found: InTurn) -> InTurn:
    found.measure(baseline(1.0))
    return found


def test_both_are_timed_in_turn_once_if_the_reference_is_as_fast_as_without_the_candidate(turns: GpuTurns) -> None:
    found = measured(InTurn([(1.1, 0.5)], [], turns))
    assert (found.reference_s, found.call_s) == pytest.approx((1.1, 0.5))
    assert turns.waited_s == 0.0


def test_both_are_timed_again_if_the_reference_was_slow_and_the_quicker_reference_counts(turns: GpuTurns) -> None:
    honest = measured(InTurn([(4.0, 4.0), (1.0, 1.0)], [2.0, 2.0, 1.0], turns))
    assert honest.reference_s == pytest.approx(1.0)
    assert not honest.estimate.is_slow
    assert turns.waited_s == pytest.approx(2 * QUIET_POLL_S)
    slows = measured(InTurn([(3.0, 1.0), (4.0, 1.0)], [2.0] * 99, turns))
    assert slows.reference_s == pytest.approx(3.0)
    assert slows.estimate.is_slow
    assert turns.waited_s == pytest.approx(2 * QUIET_POLL_S + QUIET_S)


def test_a_candidate_that_has_not_long_to_live_is_not_timed_again(turns: GpuTurns) -> None:
    assert measured(InTurn([(4.0, 1.0)], [], turns, left_s=SPARE_S - 1)).estimate.is_slow
    assert turns.waited_s == 0.0


def taken(found: BaselineTimer, rounds: int) -> tuple[int, bool, int]:
    """Number of requests, whether the GPU was quiet, and how often costs were measured anew."""
    prepared = 0

    def measure_costs(is_first: bool) -> None:
        nonlocal prepared
        prepared += is_first

    seconds, is_quiet = found.taken_alone(RHYTHM, rounds, measure_costs)
    return len(seconds), is_quiet, prepared


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([1.0] * 10, True),
        # A process that starts has the GPU for a moment.
        ([1.0, 1.0, 1.0, 3.0, 1.0, LOADED - 0.01, 3.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, LOADED, 1.0, 1.0, LOADED, 1.0, 1.0, LOADED], False),
        ([3.0, *[1.0] * 9], False),  # what a request costs is measured in the first piece, between the first two
        ([1.0, 3.0, *[1.0] * 8], False),
        ([3.0] * 10, False),
    ],
)
@pytest.mark.parametrize("rounds", [PIECES, 2 * PIECES])
def test_the_reference_is_timed_in_pieces_beside_which_no_other_program_may_use_the_gpu(
    turns: GpuTurns, loads: list[float], expected: bool, rounds: int
) -> None:
    found = without_candidate([*loads, 99.0], turns)
    assert len(found.taken_in_pieces(RHYTHM, rounds, lambda is_first: None)[0]) == rounds
    assert len(found.clock.loads) == 1
    found = without_candidate([*loads, *([] if expected else [1.0] * 11), 99.0], turns)
    assert taken(found, rounds) == (rounds, True, 1 if expected else 2)
    assert list(found.clock.loads) == [99.0]
    assert turns.waited_s == 0.0  # it is quiet at the first look


def test_a_reference_that_takes_long_is_timed_while_no_other_program_uses_the_gpu_at_all(turns: GpuTurns) -> None:
    """Two pieces say less than five."""
    for loads, expected in (([1.0] * 4, True), ([1.0, 1.0, 1.0, 3.0], False)):
        found = without_candidate([*loads, 99.0], turns)
        assert found.taken_in_pieces(RHYTHM, 2, lambda is_first: None) == ([1.0, 1.0], expected)


@pytest.mark.parametrize("disturbed", range(PIECES + 1))
def test_what_a_request_costs_is_found_in_all_pieces_so_that_one_that_was_disturbed_says_little(
    turns: GpuTurns, disturbed: int
) -> None:
    """Otherwise the reference would be thought faster than it ever was, for all later candidates."""

    class Disturbed(FakeRequests):
        pings = 0

        def ping(self, link: Link) -> float:
            self.pings += 1
            return 0.8 if (self.pings - 1) // 2 == disturbed else 0.4

        def copying_s(self, calls: int, outputs: object) -> list[float]:
            return [0.0]

        def showing_s(self, calls: int) -> list[float]:
            return [0.0]

    requests: Any = Disturbed([1.0] * 10, turns)
    reference: Any = SimpleNamespace(outputs=None)
    found = BaselineTimer(requests.checker.task, requests, reference, turns)
    measured_then = found.measure(RHYTHM, PIECES, 2 * PIECES)
    assert requests.pings == 2 * PIECES
    assert measured_then.costs.empty_s == measured_then.least.empty_s == 0.4
    assert measured_then.call_s == found.task.known.fastest_s == pytest.approx(0.6 / 9)


def test_where_a_gpu_is_never_quiet_nothing_waits_for_it_again_for_a_while(
    turns: GpuTurns, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program that is no candidate burns all the time; the reference is timed all the same."""
    assert taken(without_candidate([2.0] * 99, turns), 5)[:2] == (5, False)
    assert turns.waited_s == pytest.approx((QUIET_TRIES - 1) * QUIET_S)
    said = capfd.readouterr().err
    assert said == "another program uses the GPU, also while the reference is timed without a candidate\n"
    waited_s = turns.waited_s
    assert taken(without_candidate([3.0] * 10, turns), 5)[:2] == (5, False)
    assert measured(InTurn([(4.0, 1.0)], [], turns)).estimate.is_slow
    assert turns.waited_s == waited_s
    assert not capfd.readouterr().err
    time.sleep(BUSY_S)
    assert taken(without_candidate([2.0] * 10 + [1.0] * 11, turns), 5)[:2] == (5, True)


@pytest.mark.parametrize("party", ["reference", "candidate"])
@pytest.mark.parametrize(
    ("call_s", "launching_s", "share"),
    [
        (1e-4, 9e-4, 1.0),  # as long as the calls take
        (1e-4, 2e-3, 1.0),  # longer: the clock waited for a part of it
        (1e-2, 9e-3, 0.1),  # a large network's, most of whose time is the GPU's
        (0.04, 0.36, 1.0),  # a recurrent one's, which a GPU waits for all the time
    ],
)
def test_where_launches_are_not_in_line_an_interval_is_wider_by_what_they_take_of_the_calls_time(
    party: Party, call_s: float, launching_s: float, share: float
) -> None:
    found = estimate(call_s, call_s, call_s)
    sure = found.findings()
    found.times.launching[party] = [0.0] * 10 + [launching_s] * 8
    assert found.findings() == sure
    found.times.launching[party] = [0.0] * 8 + [launching_s] * 10
    wider = found.findings()
    assert wider["speedup"] == sure["speedup"] == pytest.approx(1.0)
    noise = GPU.call_noise + GPU.request_noise_s / (9 * call_s) + share * HOST_NOISE
    assert wider["speedup_high"] == pytest.approx(1 + noise, rel=0.001)
    assert wider["speedup_low"] == pytest.approx(1 / (1 + noise), rel=0.001)
    own = speedup_interval([call_s * one for one in NOISE * 3], [call_s * one for one in NOISE * 3], CPU.call_noise)
    on_cpu = replace(found, kind="cpu").findings()
    names = ("speedup_low", "speedup", "speedup_high")
    assert [on_cpu[name] for name in names] == pytest.approx([own.low, own.median, own.high], rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "call_s", "slots", "expected"),
    [
        ("cuda", 5e-6, 64, 20),  # enough of them
        ("cuda", 6e-6, 16, 16),  # as many as there is room for
        ("cuda", 1e-9, 64, 20),  # a call cannot be told to take less than the clock's noise
        ("cuda", 15e-6, 64, 20),
        ("cuda", 20e-6, 64, 15),
        ("cuda", 50e-6, 64, 9),
        ("cuda", 200e-6, 64, 9),  # as many as are wanted in twelve rounds
        ("cuda", 1e-3, 64, 6),  # six milliseconds of calls
        ("cuda", 1.0, 64, 1),
        ("cpu", 20e-6, 64, 64),
        ("cpu", 1e-3, 64, 6),
    ],
)
def test_calls_are_asked_for_together_until_a_request_s_own_cost_is_small(
    kind: str, call_s: float, slots: int, expected: int
) -> None:
    empty_s, asked = 500e-6, deque[Any]()

    def answers(links: list[Any], calls: int, *, timed: bool) -> list[Answer]:
        times = [empty_s + call_s * factor for factor in (10, 1, 2, 3)]
        assert len(links) == len(times)
        return [answer(links[0], taken_s) for taken_s in times]

    def link() -> Any:
        return SimpleNamespace(ask=lambda *values: asked.append(values), answer=lambda say: None)

    found = timer_that_asks(answers, kind, slots=slots, stride=1 << 20)
    found.reference = found.candidate = link()
    rhythm = found._find_rhythm(found.reference, empty_s)
    assert rhythm.calls == expected
    assert rhythm.round_s == pytest.approx(2 * (empty_s + expected * max(call_s, MIN_CALL_S)))
    assert [values[2] for values in asked] == [expected, expected]

    found.candidate = link()
    if call_s == 1e-3 and kind == "cpu":
        # The faster one says how many, the slower one how long that takes, and that it does not take too long.
        for other_s, calls in ((0.5e-3, 12), (2e-3, 6), (0.04, 2), (0.5, 1)):
            rhythm = found._find_rhythm(found.candidate, empty_s, other_s)
            assert rhythm.calls == calls
            assert rhythm.round_s == pytest.approx(2 * (empty_s + calls * max(call_s, other_s)))


def answer(link: Any, taken_s: float) -> Answer:
    nothing = torch.empty(0)
    return Answer(link, None, taken_s, 0.0, nothing, nothing, None)


def timer_that_asks(answers: Any, kind: str, slots: int, stride: int, turns: GpuTurns | None = None) -> Timer:
    """A timer of 100 calls whose requests `answers` answers."""
    found = Timer.__new__(Timer)
    sizes = {"slots": slots, "input_stride": stride, "output_stride": stride}
    found.task = task_of(kind, variant=sizes)
    found.variant, found.kind, found.device = found.task.variants[0], kind, found.task.device
    found.config = SimpleNamespace(timed_calls=100)  # type: ignore[assignment]
    maker = SimpleNamespace(bytes_of=lambda calls: 2 * calls * (stride + stride))
    found.requester = SimpleNamespace(  # type: ignore[assignment]
        answers=answers, maker=maker, checker=SimpleNamespace(task=found.task), turns=turns or GpuTurns()
    )
    asks_nothing: Any = SimpleNamespace(ask=lambda *values: None, answer=lambda say: None)
    found.reference = found.candidate = asks_nothing
    return found


@pytest.mark.parametrize(("stride", "expected"), [(1 << 20, 20), (1 << 24, 16), (1 << 25, 9), (1 << 29, 9)])
def test_more_calls_than_are_wanted_are_asked_for_only_where_they_can_be_kept(stride: int, expected: int) -> None:
    """Inputs and outputs of 16 calls of 2048 x 2048 floats take the GiB there is for requests that wait."""

    def answers(links: list[Any], calls: int, *, timed: bool) -> list[Answer]:
        return [answer(link, 515e-6) for link in links]

    found = timer_that_asks(answers, "cuda", slots=64, stride=stride)
    assert found._find_rhythm(found.reference, 500e-6).calls == expected
    assert expected == 9 or found.requester.maker.bytes_of(expected) <= GPU.staged_bytes


def test_a_rhythm_that_seems_too_slow_beside_others_is_measured_once_more_alone() -> None:
    asked: list[tuple[int, bool]] = []
    beside_s = [0.0]

    def answers(links: list[Any], calls: int, *, timed: bool) -> list[Answer]:
        asked.append((len(links), timed))
        return [answer(link, 510e-6 if timed else beside_s[0]) for link in links]

    turns = GpuTurns(3)
    found = timer_that_asks(answers, "cuda", slots=64, stride=1 << 16, turns=turns)
    for beside_s[0], expected in ((600e-6, [(4, False)]), (0.04, [(4, False), (2, True)])):
        asked.clear()
        rhythm = found._find_rhythm(found.candidate, 500e-6, 10e-6)
        assert asked == expected
        assert rhythm.calls == 20
        assert rhythm.round_s < 6e-3
    turns.lock = None  # no process is beside it
    asked.clear()
    found._find_rhythm(found.candidate, 500e-6, 10e-6)
    assert asked == [(4, False)]


@pytest.mark.parametrize("count", [1, 5, 100])
def test_no_more_rounds_are_made_together_than_there_is_room_and_time_for(count: int) -> None:
    requester: Any = FakeRequests([], GpuTurns())
    assert rhythms.rounds_together(requester, Rhythm(9, 10e-3), count) == min(count, 30)
    requester.maker = SimpleNamespace(bytes_of=lambda calls: GPU.staged_bytes // 4)
    assert rhythms.rounds_together(requester, Rhythm(9, 10e-3), count) == min(count, 4)
    requester.maker = SimpleNamespace(bytes_of=lambda calls: 2 * GPU.staged_bytes)
    assert rhythms.rounds_together(requester, Rhythm(9, 1.0), count) == 1


@pytest.mark.parametrize("strange", [False, True])
def test_the_reference_is_given_inputs_that_the_candidate_had_before_but_never_the_other_way_round(
    strange: bool,
) -> None:
    made: list[Request] = []
    reference: Any = object()
    candidate: Any = object()

    class FakeMaker:
        def bytes_of(self, calls: int) -> int:
            return 1

        def make(self, link: Link, calls: int, is_kept: bool) -> Request:
            is_mine = link is candidate
            families = ["normal" if strange and len(made) == 1 else "own"] * calls
            staged = torch.tensor([len(made)])
            expected = [Expected([staged] if is_mine else [], [], family) for family in families]
            made.append(Request(link, calls, staged, is_kept, expected, staged if is_mine else None))
            return made[-1]

    class FakeClock:
        def draw_places(self, calls: int) -> None:
            pass

        def measure(self, request: Request, mode: Mode = Mode.PLAIN) -> Answer:
            nothing = torch.empty(0)
            return Answer(request.link, request, 1.0, 0.0, nothing, nothing, None)

    class Fake(Requester):
        def check(self, answers: list[Answer]) -> None:
            pass

    found = Fake.__new__(Fake)
    found.reference, found.turns, found._staged_bytes = reference, GpuTurns(), 1 << 30
    found.maker, found.clock = FakeMaker(), FakeClock()  # type: ignore[assignment]
    order = [reference, candidate, reference, reference, candidate, candidate, reference]
    requests = [one.request for one in found.answers(order, 2, timed=False)]
    assert [one.link for one in requests if one is not None] == order
    given = [int(one.staged) for one in requests if one is not None and one.staged is not None]
    # Nothing is there for the first one; inputs of another kind are for the candidate alone.
    assert given == ([0, 1, 2, 3, 4, 5, 5] if strange else [0, 1, 1, 1, 2, 3, 3])
    for one in requests:
        assert one is not None
        assert (one.hashes is None) is (one.link is reference)
        assert one.link is candidate or not any(each.outputs for each in one.expected)


class Fakes:
    """A GPU, a gate and a Runner which write down what happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kept_back: bool, has_gate: bool) -> None:
        self.staged, self.region, self.events = torch.ones(8), torch.zeros(8), list[str]()
        module = "kernel_coder.judge.examiner.timing.clock"
        monkeypatch.setattr(f"{module}.time.perf_counter", self.now)
        monkeypatch.setattr(f"{module}.gate_of", lambda device: self if has_gate else None)
        monkeypatch.setattr(f"{module}.write_later", self.write_later)
        monkeypatch.setattr(f"{module}.synchronise", lambda device: None)
        self.clock = RequestClock.__new__(RequestClock)
        self.clock.flushed, self.clock.device = torch.ones(4), torch.device("cuda")
        known = ReferenceTiming(keeps_inputs_back=kept_back)
        self.clock.task = SimpleNamespace(known=known, memory=SimpleNamespace(gate_at=512))  # type: ignore[assignment]
        self.outputs = SimpleNamespace(bytes=torch.zeros(1024, dtype=torch.uint8))
        self.number, self.fails, self.is_late = 0, False, False

    def now(self) -> float:
        self.events.append("clock, inputs are there" if torch.equal(self.region, self.staged) else "clock, no inputs")
        return float(len(self.events))

    def shut(self) -> None:
        assert not torch.equal(self.region, self.staged)
        self.events.append("shut")

    def await_reached(self) -> None:
        self.events.append("reached")

    def open(self) -> float:
        self.events.append("open")
        return float(len(self.events))

    def write_later(self, address: int, number: int, device: object) -> None:
        assert address == self.outputs.bytes.data_ptr() + 512
        assert torch.equal(self.region, self.staged)
        assert not self.clock.flushed.any()  # type: ignore[union-attr]
        self.number = number

    def ask(self, say: Say, *values: int) -> None:
        self.events.append(f"asked {len(values)}")
        if len(values) == 6:
            assert values[5] == self.number != 0
        if self.fails:
            raise ValueError("its process ended")

    def await_queued(self, most_s: float) -> bool:
        self.events.append(f"queued {most_s / QUEUE_S:g}")
        return not self.is_late

    def asked(self) -> str:
        """The event at which the clock started."""
        asked = (Say.CALL, 0, 3, 0, 0)
        self.start: Start = self.clock._start(self, 3, self.region, self.staged, *asked)  # type: ignore[arg-type]
        return self.events[int(self.start.at) - 1]


@pytest.mark.parametrize("kept_back", [False, True])
def test_the_clock_runs_before_anybody_sees_inputs_that_are_kept_back(
    monkeypatch: pytest.MonkeyPatch, kept_back: bool
) -> None:
    fakes = Fakes(monkeypatch, kept_back, has_gate=not kept_back)
    assert fakes.asked() == ("clock, no inputs" if kept_back else "clock, inputs are there")
    assert torch.equal(fakes.region, fakes.staged)
    assert not fakes.clock.flushed.any()  # type: ignore[union-attr]
    assert fakes.start.launching_s(3, None) == 3 * HOST_S
    assert fakes.events[-1] == "asked 5"  # no gate where inputs are visible while launches get in line


def test_the_clock_starts_when_all_calls_are_in_line_behind_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch, kept_back=True, has_gate=True)
    assert fakes.asked() == "open"
    # (What this stream is asked for is done at once. The first look at the clock is for how long launching takes.)
    assert fakes.events == ["shut", "clock, inputs are there", "asked 6", "queued 3", "reached", "open"]
    assert fakes.start.launching_s(3, None) == 0.0
    assert fakes.start.launching_s(3, 1e9) == 0.0


def test_how_long_launching_takes_is_known_where_the_clock_did_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch, kept_back=True, has_gate=True)
    fakes.is_late = True
    assert fakes.asked() == "open"
    assert fakes.events == ["shut", "clock, inputs are there", "asked 6", "queued 3", "reached", "open"]
    assert fakes.start.asked_at == 2.0
    assert fakes.start.launching_s(3, 5.5) == 3.5
    assert fakes.start.launching_s(3, None) == 5.0  # until now, which is the seventh event


def test_the_gate_opens_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch, kept_back=True, has_gate=True)
    fakes.fails = True
    with pytest.raises(ValueError, match="its process ended"):
        fakes.asked()
    assert fakes.events[-1] == "open"


def test_of_a_few_timed_requests_one_has_inputs_of_another_kind_at_a_secret_place() -> None:
    places = set()
    for _ in range(200):
        found = RequestMaker.__new__(RequestMaker)
        found._until_strange = STRANGE_EVERY - 1
        are_strange = [found._is_strange() for _ in range(20 * STRANGE_EVERY)]
        assert all(any(are_strange[at : at + STRANGE_EVERY]) for at in range(len(are_strange) - STRANGE_EVERY))
        places.add(are_strange.index(True, STRANGE_EVERY))
        assert sum(are_strange) < len(are_strange) / 2
    assert len(places) == STRANGE_EVERY


def link_to_runner() -> tuple[Link, Channel]:
    ours, theirs = Channel.pair()
    return Link(ours, -1, None, bytearray(8), 300.0, GpuTurns()), theirs  # type: ignore[arg-type]


def asked(link: Link, runner: Channel) -> None:
    link.ask(Say.CALL, 0, 1)
    assert runner.receive(timeout_s=1.0).kind == Say.CALL


def test_a_request_that_is_in_line_is_answered_afterwards() -> None:
    link, runner = link_to_runner()
    for _ in range(2):
        asked(link, runner)
        runner.send(Say.QUEUED)
        before = time.perf_counter()
        assert link.await_queued(10.0)
        runner.send(Say.CALL, values=(3,))
        assert link.answer(Say.CALL).values[0] == 3
        assert link.queued_at is not None
        assert before <= link.queued_at <= time.perf_counter()


def test_a_request_that_is_in_line_too_late_is_answered_as_well() -> None:
    link, runner = link_to_runner()
    for _ in range(2):
        asked(link, runner)
        assert not link.await_queued(1e-3)
        assert link.queued_at is None
        before = time.perf_counter()
        runner.send(Say.QUEUED)
        runner.send(Say.CALL, values=(3,))
        assert link.answer(Say.CALL).values[0] == 3
        assert link.queued_at is not None
        assert before <= link.queued_at <= time.perf_counter()


def test_a_request_that_fails_before_it_is_in_line_is_answered_at_once() -> None:
    link, runner = link_to_runner()
    asked(link, runner)
    runner.send(Say.CALL, status=Status.RAISED)
    started = time.monotonic()
    assert not link.await_queued(10.0)
    assert time.monotonic() - started < 5
    assert link.answer(Say.CALL).status == Status.RAISED
    asked(link, runner)
    link.await_queued(1e-3)
    runner.send(Say.CALL, status=Status.RAISED)
    assert link.answer(Say.CALL).status == Status.RAISED


@pytest.mark.parametrize("awaited", [False, True])
def test_a_runner_that_says_twice_that_a_request_is_in_line_or_unasked_is_rejected(awaited: bool) -> None:
    link, runner = link_to_runner()
    asked(link, runner)
    runner.send(Say.QUEUED)
    if awaited:
        link.await_queued(10.0)
        runner.send(Say.QUEUED)
    with pytest.raises(Judged, match="it wrote to the judge's channel"):
        link.answer(Say.CALL)


def test_a_runner_that_ends_in_line_has_crashed() -> None:
    link, runner = link_to_runner()
    asked(link, runner)
    runner.close()
    with pytest.raises(Judged, match="its process ended"):
        link.await_queued(10.0)


@pytest.mark.gpu
def test_a_stream_waits_at_the_gate_until_it_is_opened(device: str) -> None:
    gate = gate_of(torch.device(device))
    assert gate is not None
    x, y = torch.zeros(8, device=device), torch.arange(8.0, device=device)
    number = torch.zeros(1, dtype=torch.int32, device=device)
    side, event = (
        torch.cuda.Stream(),
        torch.cuda.Event(),
    )  # what makes something new waits for the GPU, and so do kernels
    torch.cuda.synchronize()
    for value in (7, 8):
        gate.shut()
        try:
            x.copy_(y)
            write_later(number.data_ptr(), value, x.device)
            with torch.cuda.stream(side):
                wait_for(number.data_ptr(), value, x.device)
                event.record()
            time.sleep(0.05)
            assert not event.query()
        finally:
            gate.open()
        torch.cuda.synchronize()
        assert x.tolist() == y.tolist()
        assert number.item() == value
        x.zero_()


REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs():
    return [torch.rand(SIZE, SIZE)]
def get_init_inputs():
    return []
"""
SAME = REFERENCE.replace("class Model(", "class ModelNew(")
HOST = SAME.replace("import torch\n", "import time, torch\n", 1)
RESULT = "return torch.softmax(x, -1)"
BUSY = HOST.replace(RESULT, "until = time.perf_counter() + 1e-4\n        while time.perf_counter() < until:\n"
                    "            pass\n        " + RESULT)  # fmt: skip
WAITS = HOST.replace(RESULT, "torch.cuda.synchronize()\n        if x.sum().isnan().item():\n"
                     "            raise ValueError\n        " + RESULT)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2048, 4096])
def test_the_clock_says_what_the_gpu_takes(device: str, size: int) -> None:
    """Not what a call takes of the CPU's time while the GPU could be busy; but that, too, where the call waits."""
    task = Task(id="timing/softmax", source="test", reference=REFERENCE.replace("SIZE", str(size)))
    with Judge(device, config=JudgeConfig(workers=1, checks=1, profile=False)) as judge:
        same, busy, waits = (judge.evaluate(task, source, "torch") for source in (SAME, BUSY, WAITS))
        slow = judge.evaluate(task, BUSY.replace("1e-4", "3e-3"), "torch")
    for verdict in (same, busy, waits, slow):
        assert verdict.correct, verdict.reason
    from triton.testing import do_bench

    x = torch.rand(size, size, device=device)
    expected_ms = do_bench(lambda: torch.softmax(x, -1), return_mode="median")
    for verdict in (same, busy):
        assert verdict.runtime_ms == pytest.approx(expected_ms, rel=0.25)
        assert verdict.speedup == pytest.approx(1.0, abs=0.1)
        assert verdict.speedup_low is not None
        assert verdict.speedup_low <= 1 <= (verdict.speedup_high or 0)
    assert waits.speedup is not None
    assert waits.speedup < 0.6
    assert slow.runtime_ms is not None
    assert slow.runtime_ms > 2.0


def test_what_is_shown_while_the_clock_runs_is_no_part_of_a_call() -> None:
    costs = Costs(500e-6, 10e-6, 1e-12)
    taken_s = 500e-6 + 4 * 10e-6 + 3 * SHOWN_BYTES * 1e-12 + 4 * 25e-6
    assert costs.call_s(taken_s, 4, SHOWN_BYTES) == pytest.approx(25e-6)
    assert costs._replace(empty_s=400e-6).call_s(taken_s, 4, SHOWN_BYTES) == pytest.approx(50e-6)
    assert costs.call_s(500e-6, 4, SHOWN_BYTES) == pytest.approx(MIN_SHARE * 500e-6 / 4)


def estimate_of_requests(reference_ping_s: float, candidate_ping_s: float) -> Estimate:
    """Of nine calls, 30 and 20 microseconds long, where an empty request takes 400 without a candidate, 420 with it."""
    times = TimesInTurn([(420e-6 + 9 * 30e-6, 420e-6 + 9 * 20e-6)] * 18)
    times.pings = {"reference": [reference_ping_s] * 5, "candidate": [candidate_ping_s] * 5}
    return replace(estimate(1.0, 1.0, 30e-6), before=baseline(30e-6, empty_s=400e-6), times=times)


NOISE_OF_REQUESTS = 1 + GPU.call_noise + GPU.request_noise_s / (9 * 20e-6)


def test_what_a_request_costs_by_itself_is_what_it_costs_in_turn() -> None:
    found = estimate_of_requests(420e-6, 420e-6)
    assert not found.is_slow
    verdict = found.findings()
    assert verdict["speedup"] == pytest.approx(1.5)
    assert verdict["reference_ms"] == pytest.approx(30e-3)
    assert verdict["speedup_high"] == pytest.approx(1.5 * NOISE_OF_REQUESTS)
    by_what_it_costs_alone = (30 + 20 / 9) / (20 + 20 / 9)
    assert verdict["speedup_low"] == pytest.approx(by_what_it_costs_alone / NOISE_OF_REQUESTS)
    lower = estimate_of_requests(390e-6, 390e-6).findings()
    assert lower["speedup"] == pytest.approx(300 / 210)


def test_a_candidate_that_makes_empty_requests_long_is_not_surely_faster_for_it() -> None:
    honest = estimate_of_requests(420e-6, 420e-6).findings()
    reference, own = estimate_of_requests(900e-6, 420e-6).findings(), estimate_of_requests(420e-6, 900e-6).findings()
    assert reference["speedup"] < 1.7
    assert reference["speedup_low"] <= honest["speedup_low"]
    assert own["speedup"] == honest["speedup"]
    assert own["speedup_low"] == honest["speedup_low"]
    assert own["speedup_high"] > honest["speedup_high"]


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_candidate_that_could_have_left_out_the_copying_is_surely_faster_by_more_than_that_only(kind: str) -> None:
    """Nine calls of 30 microseconds, and 10 to copy the outputs of each, which the candidate does not do."""
    costs = Costs(400e-6, 10e-6 if kind == "cuda" else 0.0)
    before = baseline(30e-6 if kind == "cuda" else 40e-6, kind)._replace(costs=costs, least=costs)
    times = TimesInTurn([(400e-6 + 9 * 40e-6, 400e-6 + 9 * 30e-6)] * 18)
    found = replace(estimate(1.0, 1.0, 1.0, kind=kind), before=before, times=times)
    plain = found.findings()
    assert plain["speedup"] == pytest.approx(1.5 if kind == "cuda" else 4 / 3)
    assert plain["speedup_low"] > 1.1
    careful = replace(found, could_reach_runner=True).findings()
    assert careful["speedup_low"] < 1
    assert careful["speedup_low"] > 0.7 if kind == "cuda" else careful["speedup_low"] == UNSURE
    assert {**careful, "speedup_low": 0} == {**plain, "speedup_low": 0}


def test_places_that_are_read_back_come_from_no_generator_whose_numbers_a_candidate_sees() -> None:
    """From 2,000 words of torch's generator on a CPU one can compute all that come after."""
    found = RequestClock.__new__(RequestClock)
    found.variant = SimpleNamespace(output_stride=1 << 20)  # type: ignore[assignment]
    found.device = torch.device("cpu")
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        found.draw_places(3)
        assert found.places.shape == (CANARIES,)
        assert 0 <= int(found.places.min()) < int(found.places.max()) < 3 << 20
        drawn.append(found.places)
    assert not torch.equal(*drawn)


def test_large_inputs_are_shown_when_the_expected_outputs_are_known() -> None:
    """Not while they are computed, when a thread of the candidate could see the inputs."""
    events: list[str] = []

    def own_outputs(inputs: list[torch.Tensor], cotangents: object) -> list[torch.Tensor]:
        events.append("computed")
        assert not memory.any()
        return [inputs[0] + 1]

    found = RequestMaker.__new__(RequestMaker)
    reference = SimpleNamespace(
        own_inputs=lambda seeded: [torch.ones(4)], cotangents_of=lambda inputs: [], own_outputs=own_outputs
    )
    found.task = SimpleNamespace(reference=reference)  # type: ignore[assignment]
    memory = torch.zeros(32, dtype=torch.uint8)
    found.variant = SimpleNamespace(input_specs=[TensorSpec((4,), "float32", 0)], cotangent_specs=[], input_stride=16)  # type: ignore[assignment]
    found.tolerances = []
    expected = found._fresh_call(memory, 1, True)
    assert events == ["computed"]
    assert memory.view(torch.float32).tolist() == [0.0] * 4 + [1.0] * 4
    assert expected.outputs[0].tolist() == [2.0] * 4
    assert found._fresh_call(memory, 1, False).outputs == []


def test_a_candidate_whose_process_is_quicker_is_not_surely_faster_for_it() -> None:
    honest, quicker = estimate_of_requests(420e-6, 420e-6).findings(), estimate_of_requests(420e-6, 390e-6).findings()
    assert quicker["speedup"] == honest["speedup"]
    assert quicker["speedup_high"] == honest["speedup_high"]
    assert quicker["speedup_low"] == pytest.approx(30 / (20 + 30 / 9) / NOISE_OF_REQUESTS)
