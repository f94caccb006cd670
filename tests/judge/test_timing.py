"""The clock: how many calls a request has, when it starts, and which of the reference's times count."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import corpus
import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import Seeds
from kernel_coder.judge.examiner.timing.clock import Answer, Asked, RequestClock, Sent
from kernel_coder.judge.examiner.timing.requests import Request, RequestMaker
from kernel_coder.judge.examiner.timing.rounds import Requester
from kernel_coder.judge.examiner.timing.speedup import Speedup, speedup_interval
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.examiner.timing_constants import (
    BASELINE_PIECES,
    BUSY_S,
    CANARIES,
    DRIFT_S,
    EARLY_S,
    HOST_NOISE,
    MIN_ROUNDS,
    QUEUE_S,
    QUIET_S,
    QUIET_TRIES,
    STRANGE_EVERY,
    TIMING,
    UNSURE,
)
from kernel_coder.judge.examiner.timing_records import (
    Baseline,
    Costs,
    Party,
    ReferenceTiming,
    Rounds,
)
from kernel_coder.judge.examiner.tolerance import Tolerance
from kernel_coder.judge.gpu.contention import LOADED
from kernel_coder.judge.gpu.stream_gate import gate_of, wait_for, write_later
from kernel_coder.judge.gpu.turns import GpuTurns
from kernel_coder.judge.runner import candidate as runner_module
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.channel import Channel
from kernel_coder.judge.wire.messages import Say, Status, TensorSpec
from kernel_coder.tasks import Task

NOISE = (1.0, 0.99, 1.01, 1.0, 1.02, 0.98)
GPU, CPU = TIMING["cuda"], TIMING["cpu"]


def baseline(
    call_s: float,
    kind: str = "cuda",
    is_quiet: bool = True,
    costs: Costs = Costs(0.0, 0.0),  # noqa: B008
) -> Baseline:
    return Baseline(call_s, call_s, costs, time.monotonic(), kind, is_quiet=is_quiet)


def rounds_of(reference_s: float, candidate_s: float, empty_s: float = 0.0) -> Rounds:
    """Return rounds whose requests have nine calls."""
    both = {"reference": reference_s, "candidate": candidate_s}
    taken: dict[Any, list[float]] = {
        name: [empty_s + 9 * call_s * one for one in NOISE * 3] for name, call_s in both.items()
    }
    launching: dict[Any, list[float]] = {name: [0.0] * 18 for name in both}
    return Rounds(9, {**taken, "empty": [empty_s] * 18}, launching)


def speedup(
    reference_s: float, candidate_s: float, before_s: float, afterwards_s: float | None = None, kind: str = "cuda"
) -> Speedup:
    """Return the speedup for these seconds of a call: of reference and candidate in turn, and of the reference alone
    before and, if given, afterwards."""
    return Speedup(
        rounds=rounds_of(reference_s, candidate_s),
        before=baseline(before_s, kind),
        afterwards=None if afterwards_s is None else baseline(afterwards_s, kind),
    )


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize(("slower", "expected"), [(-2.0, False), (-0.1, False), (0.1, True)])
def test_reference_counts_as_slowed_down_only_above_the_limit_of_the_device(
    kind: str, slower: float, expected: bool
) -> None:
    assert speedup(2.0 * max(TIMING[kind].slow + slower, 0.9), 1.0, 2.0, kind=kind).is_slow is expected


def test_reference_below_the_cpu_limit_counts_with_its_times_in_turn() -> None:
    """The reference is 1.5 times as slow in turn as before and after. Two threads that share a core cause that, and not
    the candidate. So the times in turn count."""
    found = speedup(3.0, 3.0, 2.0, 2.0, kind="cpu").findings()
    assert found["speedup"] == pytest.approx(1.0)
    wider = 1 + CPU.call_noise
    assert found["speedup_low"] == pytest.approx(2 / 3 / wider, rel=0.01)  # by the reference's time alone
    assert found["speedup_high"] == pytest.approx(wider, rel=0.01)
    assert max(found["reference_runtimes_ms"]) > 2900


def test_noise_of_a_request_does_not_count_as_slowness() -> None:
    assert not speedup(1.0 + 1.9 * GPU.request_noise_s / 9, 1.0, 1.0).is_slow
    tiny = 1e-6
    assert not speedup(tiny + 1.9 * GPU.request_noise_s / 9, tiny, tiny).is_slow
    assert speedup(tiny + 2.3 * GPU.request_noise_s / 9, tiny, tiny).is_slow


@pytest.mark.parametrize(("slow", "expected"), [(11, False), (14, False), (15, True), (18, True)])
def test_slow_requests_raise_the_reference_time_at_most_to_the_limit(slow: int, expected: bool) -> None:
    """The first `slow` of 18 requests to the reference take 1.5 times as long. If the candidate causes that in too few
    requests to be noticed, its lower bound still stays below 1."""
    found = speedup(2.0, 2.0, 2.0)
    own = found.rounds.taken_s["reference"]
    own[:slow] = [1.5 * one for one in own[:slow]]
    assert found.is_slow is expected
    if expected:
        found = replace(found, afterwards=baseline(2.0))
    says = found.findings()
    assert says["speedup"] == pytest.approx(1.0 if expected else GPU.slow, rel=0.03)
    assert says["reference_ms"] == pytest.approx(2000.0 * (1.0 if expected else GPU.slow))
    assert says["speedup_low"] < 1.0


def test_reference_that_is_fast_again_after_the_candidate_counts_with_that_time() -> None:
    found = speedup(4.0, 2.0, 2.0, 2.0).findings()
    assert found["speedup"] == pytest.approx(1.0)
    assert found["speedup_low"] <= 1 <= found["speedup_high"]
    assert found["reference_ms"] == pytest.approx(2000)
    assert max(found["reference_runtimes_ms"]) < 2100


def test_reference_that_stays_slow_raises_the_speedup_but_not_its_lower_bound() -> None:
    """Another program slowed the reference down. If it started after the reference was timed alone, it may help the
    candidate. Then the lower bound uses the time before."""
    found = speedup(4.0, 2.0, 2.0, 4.0).findings()
    assert found["speedup"] == pytest.approx(2.0)
    assert found["reference_ms"] == pytest.approx(4000)
    assert found["speedup_low"] == pytest.approx(1.0, rel=0.05)
    assert speedup(4.0, 2.0, 4.0, 4.0).findings()["speedup_low"] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("before_s", "afterwards_s"), [(2.5, 2.0), (2.0, 2.5)])
def test_reference_that_was_fast_before_and_after_counts_with_the_slower_of_both_times(
    before_s: float, afterwards_s: float
) -> None:
    found = speedup(4.0, 2.0, before_s, afterwards_s).findings()
    assert found["speedup"] == pytest.approx(1.25)
    assert found["reference_ms"] == pytest.approx(2500)
    assert found["speedup_low"] == pytest.approx(1.0, rel=0.05)


def test_lower_bound_uses_the_reference_time_alone_if_it_is_faster() -> None:
    """A candidate that slows the reference down by less than the limit does not raise its own lower bound."""
    even, slowed = speedup(2.0, 2.0, 2.0).findings(), speedup(2.3, 2.0, 2.0).findings()
    assert slowed["speedup"] == pytest.approx(1.15)
    assert slowed["speedup_low"] == pytest.approx(even["speedup_low"])
    faster_before = speedup(2.0, 2.0, 4.0).findings()
    assert faster_before == even


def test_lower_bound_stays_below_one_if_the_reference_was_never_alone_on_the_gpu() -> None:
    """For example, several candidates leave work on the GPU. Then the reference is slow before, in turn and after."""
    found = speedup(8.0, 4.0, 8.0, 8.0)
    assert found.is_sure
    assert found.findings()["speedup_low"] == pytest.approx(2.0, rel=0.05)
    busy = baseline(8.0, is_quiet=False)
    found = replace(found, before=busy, afterwards=busy)
    assert not found.is_sure
    assert found.findings()["speedup"] == pytest.approx(2.0)
    assert found.findings()["speedup_low"] == UNSURE < 1
    found = replace(found, fastest_s=2.0)  # measured for another candidate
    assert found.is_sure
    assert found.is_slow
    assert found.findings()["speedup_low"] == pytest.approx(0.5, rel=0.05)
    found = replace(found, fastest_s=math.inf, afterwards=baseline(2.0))  # the other programs have ended
    assert found.is_sure
    assert found.findings()["speedup"] == pytest.approx(0.5)
    assert found.findings()["speedup_low"] == pytest.approx(0.5, rel=0.05)


def test_lower_bound_uses_the_fastest_request_to_the_reference() -> None:
    """A program that uses the GPU in bursts makes some requests slow, and so their median."""
    found = speedup(2.0, 2.0, 2.0)
    even = found.findings()
    found = replace(found, before=baseline(2.0)._replace(fastest_s=1.0))
    assert found.findings()["speedup"] == even["speedup"]
    assert found.findings()["speedup_low"] == pytest.approx(even["speedup_low"] / 2)


def test_baseline_is_fresh_only_if_it_is_recent_and_no_other_program_used_the_gpu() -> None:
    now = baseline(1.0)
    assert now.is_fresh
    assert not now._replace(is_quiet=False).is_fresh
    assert not now._replace(measured_at=now.measured_at - GPU.baseline_max_age_s).is_fresh


class FakeRequests:
    """Fake requests, which take a second for each call of the reference. The loads of the GPU are given."""

    def __init__(self, loads: list[float]) -> None:
        self.loads, self.clock = deque(loads), self
        self.parties: list[Party] = []

    def load(self) -> float:
        return self.loads.popleft()

    def room(self, calls: int) -> int:
        return 1000

    def free_memory(self) -> None:
        """The task is small."""

    def answers(self, parties: list[Party], calls: int, *, timed: bool = True, around: Any = None) -> list[Answer]:
        self.parties += parties
        for _ in range(2 if around else 0):
            around()
        seconds = {"reference": calls * 1.0, "candidate": calls * 0.5, "empty": 0.0, "single": 0.0}
        return [Answer(seconds[party], 0.0) for party in parties]


@pytest.mark.parametrize("is_large", [False, True])
def test_after_timing_a_large_task_each_runner_gives_back_its_memory(is_large: bool) -> None:
    asked: list[Any] = []

    def link(name: str) -> Any:
        found = Mock()
        found.prepare = lambda calls: asked.append((name, calls))
        return found

    found = Requester.__new__(Requester)
    found.reference = link("reference")
    found.checker = SimpleNamespace(link=link("candidate"), task=SimpleNamespace(is_large=is_large))  # type: ignore[assignment]
    found.free_memory()
    assert asked == ([("reference", 0), ("candidate", 0)] if is_large else [])
    found.checker.link = found.reference
    asked.clear()
    found.free_memory()
    assert asked == ([("reference", 0)] if is_large else [])


def timer(loads: list[float], turns: GpuTurns, kind: str = "cuda") -> Any:
    found = Timer.__new__(Timer)
    found.kind, found.turns, found.requester = kind, turns, FakeRequests(loads)  # type: ignore[assignment]
    found.task = SimpleNamespace(known=ReferenceTiming(calls=9), launches=lambda: 1)  # type: ignore[assignment]
    found.config = SimpleNamespace(timed_calls=100, timing_s=10.0)  # type: ignore[assignment]
    found.variant = SimpleNamespace(slots=64)  # type: ignore[assignment]
    found.afterwards, found.compiled_s, found.could_reach_runner, found.rounds = None, None, False, Rounds()
    found._free_memory = lambda: None  # type: ignore[method-assign]
    found._refuse_below_floor = lambda: None  # type: ignore[method-assign]
    return found


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> GpuTurns:
    """Return turns without a lock. time.sleep() returns at once, and advances time.monotonic() instead."""
    slept: list[float] = []
    began = time.monotonic()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: began + sum(slept))
    return GpuTurns()


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([1.0] * 10, True),
        # A process that starts uses the GPU for a moment.
        ([1.0, 1.0, 1.0, 3.0, 1.0, LOADED - 0.01, 3.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, LOADED, 1.0, 1.0, LOADED, 1.0, 1.0, LOADED], False),
        ([3.0] * 10, False),
    ],
)
def test_reference_is_timed_again_if_another_program_used_the_gpu_meanwhile(
    turns: GpuTurns, loads: list[float], expected: bool
) -> None:
    assert len(loads) == 2 * BASELINE_PIECES
    found = timer([*loads, *[1.0] * 10], turns)
    alone = found._timed_alone(9)
    assert alone.is_quiet
    assert len(found.requester.loads) == (10 if expected else 0)
    assert turns.waited_s == pytest.approx(0.0 if expected else QUIET_S)
    assert found.task.known.fastest_s == alone.call_s == 1.0


def test_timer_that_waited_in_vain_for_a_quiet_gpu_does_not_wait_again_for_a_while(
    turns: GpuTurns, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program that is no candidate uses the GPU all the time. The timer times the reference all the same."""
    found = timer([2.0] * 30, turns)
    assert not found._timed_alone(9).is_quiet
    assert turns.waited_s == pytest.approx((QUIET_TRIES - 1) * QUIET_S)
    said = capfd.readouterr().err
    assert said == "another program uses the GPU, also while the reference is timed without a candidate\n"
    assert found.task.known.fastest_s == math.inf
    waited_s = turns.waited_s
    assert not timer([3.0] * 10, turns)._timed_alone(9).is_quiet
    assert turns.waited_s == waited_s
    assert not capfd.readouterr().err
    time.sleep(BUSY_S)
    assert timer([2.0] * 10 + [1.0] * 10, turns)._timed_alone(9).is_quiet


@pytest.mark.parametrize("disturbed", range(BASELINE_PIECES))
def test_one_disturbed_measurement_does_not_change_the_cost_of_a_request(turns: GpuTurns, disturbed: int) -> None:
    """With a cost that is too high, the reference would seem faster than it ever was, for all later candidates."""
    found = timer([1.0] * 10, turns)
    pieces = 0

    def answers(parties: list[Party], calls: int, *, around: Any) -> list[Answer]:
        nonlocal pieces
        pieces += 1
        around()
        around()
        factor = 2.0 if pieces == disturbed + 1 else 1.0
        taken = {"reference": 1.0, "empty": 0.4 * factor, "single": 0.24 * factor}
        return [Answer(taken[party], 0.0) for party in parties]

    found.requester.answers = answers
    alone = found._timed_alone(9)
    assert alone.costs == pytest.approx((0.24, 0.02))
    assert alone.call_s == found.task.known.fastest_s == pytest.approx(0.6 / 9)


@pytest.mark.parametrize("party", ["reference", "candidate"])
@pytest.mark.parametrize(
    ("call_s", "launching_s", "share"),
    [
        (1e-4, 9e-4, 1.0),  # the launches take as long as the calls
        (1e-4, 2e-3, 1.0),  # they take longer, and the share stays 1
        (1e-2, 9e-3, 0.1),  # a large network: its calls take most of the time
    ],
)
def test_late_launches_widen_the_interval_by_their_share_of_the_time_of_the_calls(
    party: Party, call_s: float, launching_s: float, share: float
) -> None:
    """Launches are late if they are not in line when the gate opens. Then the clock includes a part of them."""
    found = speedup(call_s, call_s, call_s)
    sure = found.findings()
    found.rounds.launching_s[party] = [0.0] * 10 + [launching_s] * 8
    assert found.findings() == sure
    found.rounds.launching_s[party] = [0.0] * 8 + [launching_s] * 10
    wider = found.findings()
    assert wider["speedup"] == sure["speedup"] == pytest.approx(1.0)
    noise = GPU.call_noise + (GPU.request_noise_s / 9 + GPU.call_noise_s) / call_s + share * HOST_NOISE
    assert wider["speedup_high"] == pytest.approx(1 + noise, rel=0.001)
    assert wider["speedup_low"] == pytest.approx(1 / (1 + noise), rel=0.001)
    own = speedup_interval([call_s * one for one in NOISE * 3], [call_s * one for one in NOISE * 3], CPU.call_noise)
    on_cpu = speedup(call_s, call_s, call_s, kind="cpu").findings()
    names = ("speedup_low", "speedup", "speedup_high")
    assert [on_cpu[name] for name in names] == pytest.approx([own.low, own.median, own.high], rel=1e-12)


def test_interval_widens_with_the_number_of_kernels_that_a_call_launches() -> None:
    call_s = 14e-6
    one = speedup(call_s, call_s, call_s)
    assert replace(one, launches=1).findings() == one.findings()
    six = replace(one, launches=6).findings()
    noise = GPU.call_noise + (GPU.request_noise_s / 9 + 6 * GPU.launch_noise_s) / call_s
    assert six["speedup_high"] == pytest.approx(1 + noise, rel=0.001)
    assert six["speedup"] == one.findings()["speedup"]
    # One fast kernel replaces six: the noise of launches is a share of the reference's time.
    fused = replace(speedup(call_s, call_s / 7, call_s), launches=6).findings()
    noise = GPU.call_noise + (GPU.request_noise_s / 9 + GPU.call_noise_s) * 7 / call_s
    assert 6 * GPU.launch_noise_s / call_s < GPU.call_noise_s * 7 / call_s
    assert fused["speedup_low"] == pytest.approx(7 / (1 + noise), rel=0.001)


@pytest.mark.parametrize(("every", "rounds"), [(1000, 8), (12, 8), (7, 12), (5, 18), (2, 18)])
def test_timer_makes_more_rounds_if_some_requests_are_slow(turns: GpuTurns, every: int, rounds: int) -> None:
    """Each `every`-th request to the candidate takes five times as long as the others."""
    found = timer([], turns)
    found.task.known.calls, found.requester.turns = 22, turns
    found.task.known.fastest_s = 1.0
    asked: list[int] = []

    def answers(parties: list[Party], calls: int, **_: Any) -> list[Answer]:
        given = []
        for party in parties:
            asked.append(1) if party == "candidate" and calls > 1 else None
            slow = 5.0 if party == "candidate" and len(asked) % every == 0 and asked else 1.0
            seconds = {"reference": 1e-6, "candidate": 0.5e-6 * slow}.get(party, 0.0)
            given.append(Answer(calls * seconds, 0.0))
        return given

    found.requester.answers = answers
    found._in_line = lambda party, calls: calls
    found.measure(baseline(1e-6))
    assert len(found.rounds.taken_s["candidate"]) == rounds
    if every == 5:  # three of 18 requests are slow; the lower bound ignores as many
        assert found.findings()["speedup_low"] > 1.0


@pytest.mark.parametrize(
    ("kind", "call_s", "slots", "expected"),
    [
        ("cuda", 2e-6, 64, 22),  # the upper limit of a request
        ("cuda", 2e-6, 16, 16),
        ("cuda", 40e-6, 64, 13),  # the calls take half a millisecond together
        ("cuda", 200e-6, 64, 9),  # enough for 100 timed calls in twelve rounds
        ("cuda", 1e-3, 64, 6),  # the calls take six milliseconds together
        ("cuda", 1.0, 64, 1),
        ("cpu", 20e-6, 64, 64),
        ("cpu", 1e-3, 64, 6),
    ],
)
def test_number_of_calls_in_a_request_depends_on_the_time_of_a_call(
    turns: GpuTurns, kind: str, call_s: float, slots: int, expected: int
) -> None:
    found = timer([], turns, kind)
    found.variant.slots = slots
    assert found._wanted_calls(call_s) == expected


@pytest.mark.parametrize(("room", "expected"), [(1000, 22), (16, 16), (4, 9), (0, 9)])
def test_request_has_more_calls_than_the_minimum_only_if_memory_can_hold_them(
    turns: GpuTurns, room: int, expected: int
) -> None:
    found = timer([], turns)
    found.requester.room = lambda calls: room
    assert found._wanted_calls(2e-6) == expected


@pytest.mark.parametrize(("fits", "expected"), [(64, 64), (63, 16), (15, 9), (1, 9)])
def test_request_has_fewer_calls_if_their_launches_do_not_all_get_in_line(
    turns: GpuTurns, fits: int, expected: int
) -> None:
    found = timer([], turns)

    def answers(parties: list[Party], calls: int, *, timed: bool) -> list[Answer]:
        assert not timed
        return [Answer(1.0, 0.1 if calls > fits else 0.0) for _ in parties]

    found.requester.answers = answers
    assert found._in_line("candidate", 64) == expected


def test_candidate_reference_and_empty_requests_are_timed_in_a_secret_order(
    turns: GpuTurns,
) -> None:
    orders = set()
    for _ in range(20):
        found = timer([], turns)
        found.measure(baseline(1.0))
        assert found.rounds.calls == 1  # a single call takes longer than the limit of a request
        sent = found.requester.parties[-300:]
        assert all(sorted(sent[at : at + 3]) == ["candidate", "empty", "reference"] for at in range(0, 300, 3))
        orders.add(tuple(sent[:6]))
        assert found.findings()["speedup"] == pytest.approx(2.0)
    assert len(orders) > 1


def test_slow_candidate_is_timed_in_fewer_rounds(turns: GpuTurns) -> None:
    found = timer([], turns)
    answers = found.requester.answers

    def slowly(parties: list[Party], calls: int, **more: Any) -> list[Answer]:
        time.sleep(0.6 * len(parties))
        return answers(parties, calls, **more)

    found.requester.answers = slowly
    found.measure(baseline(1.0))
    assert MIN_ROUNDS <= len(found.rounds.taken_s["candidate"]) <= MIN_ROUNDS + 1


class FakeMaker:
    """Makes requests. The input of each request is its number."""

    def __init__(self, strange: bool) -> None:
        self.strange, self.made = strange, 0

    def bytes_of(self, calls: int) -> int:
        return 1

    def make(self, calls: int, is_candidate: bool, is_kept: bool) -> Request:
        sample: Any = (0, None) if self.strange and self.made == 1 else None
        self.made += 1
        return Request(calls, torch.tensor([self.made - 1]), is_candidate, is_kept, [], sample, None)


@pytest.mark.parametrize("strange", [False, True])
def test_reference_gets_inputs_that_the_candidate_had_and_the_candidate_gets_only_new_ones(
    strange: bool,
) -> None:
    found = Requester.__new__(Requester)
    found.maker = FakeMaker(strange)  # type: ignore[assignment]
    turn: Any = SimpleNamespace(pause=lambda: None)
    order: list[Party] = ["reference", "candidate", "empty", "reference", "reference"]
    order += ["candidate", "candidate", "reference"]
    requests = found._requests(order, 2, turn)
    given = [None if one is None else int(one.staged) for one in requests]
    # The first request has no inputs to reuse. Inputs of another family are for the candidate alone.
    assert given == ([0, 1, None, 2, 3, 4, 5, 5] if strange else [0, 1, None, 1, 1, 2, 3, 3])
    for party, one in zip(order, requests, strict=True):
        assert one is None or one.is_candidate is (party == "candidate")


def requester_that_found(found: torch.Tensor, *, expected: torch.Tensor, strange: Any = None) -> tuple[Requester, Any]:
    """Return a Requester, an answer with these outputs, and a list of refusals. The request has two calls. Each output
    is [3] in 16 bytes."""
    one = Requester.__new__(Requester)
    spec = TensorSpec((3,), "float32", 0)
    variant = SimpleNamespace(output_specs=[spec], output_stride=16)
    one.maker = SimpleNamespace(  # type: ignore[assignment]
        variant=variant, tolerances=[Tolerance(1e-3, 1e-3, 1e-3, 0.0)], has_same_integers=lambda *_: False
    )
    refused: list[Any] = []

    def refuse(variant: object, family: str, tolerances: Any, results: Any, when: str) -> None:
        if not all(allowed.passes(result) for allowed, result in zip(tolerances, results, strict=True)):
            refused.append((family, results[0].first))

    reference = SimpleNamespace(changes_inputs=False)
    one.checker = SimpleNamespace(refuse_values=refuse, task=SimpleNamespace(reference=reference))  # type: ignore[assignment]
    one.clock = SimpleNamespace(places=torch.arange(12))  # type: ignore[assignment]
    request = Request(2, torch.empty(0), True, True, [expected], strange, torch.zeros(1))
    memory = torch.zeros(2, 4)
    memory[:, :3] = found
    seen = memory.view(torch.uint8).reshape(-1)
    return one, (Answer(1.0, 0.0, request, seen.clone(), seen[:12].clone(), torch.zeros(1)), refused)


def test_every_output_of_every_timed_call_is_compared() -> None:
    right = torch.arange(1.0, 7.0).view(2, 3)
    found, (answer, refused) = requester_that_found(right, expected=right.clone())
    found._check([answer])
    assert not refused
    for place in range(6):
        wrong = right.clone()
        wrong.view(-1)[place] += 1
        found, (answer, refused) = requester_that_found(wrong, expected=right.clone())
        found._check([answer])
        assert refused == [("own", place % 3)]


def test_call_on_inputs_of_another_family_is_compared_with_its_own_expected_output() -> None:
    right = torch.arange(1.0, 7.0).view(2, 3)
    tolerances = [Tolerance(1e-3, 1e-3, 1e-3, 0.0)]
    for off, expected in ((0.0, []), (1.0, [("normal", 0)])):
        sample = SimpleNamespace(
            expected=[right[1].double() + off],
            tolerances=tolerances,
            family="normal",
            has_same_integers=lambda *_: False,
        )
        other = right.clone()
        other[1] = math.nan  # only the sample has the expected output of this call
        found, (answer, refused) = requester_that_found(right, expected=other, strange=(1, sample))
        found._check([answer])
        assert refused == expected


def test_output_written_after_the_answer_and_changed_input_are_refused() -> None:
    right = torch.arange(1.0, 7.0).view(2, 3)
    found, (answer, _) = requester_that_found(right, expected=right.clone())
    late = answer._replace(seen=answer.seen + 1)
    with pytest.raises(Judged, match="it wrote to an output after it had answered"):
        found._check([late])
    with pytest.raises(Judged, match="it wrote to an input in a timed call"):
        found._check([answer._replace(hashes=torch.ones(1))])


class Fakes:
    """A fake GPU, gate and Runner, which record events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: str = "", is_late: bool = False) -> None:
        self.events: list[str] = []
        self.fails_at, self.is_late, self.queued_at = fails_at, is_late, None
        module = "kernel_coder.judge.examiner.timing.clock"
        monkeypatch.setattr(f"{module}.gate_of", lambda device: self)
        monkeypatch.setattr(f"{module}.write_later", self.write_later)
        monkeypatch.setattr(f"{module}.wait_for", lambda address, number, device: self.note(f"wait {address}"))
        monkeypatch.setattr(f"{module}.torch.index_select", lambda *_, out: self.note("look"))
        monkeypatch.setattr(f"{module}.torch.cuda.stream", lambda stream: self)
        self.clock = RequestClock.__new__(RequestClock)
        memory = SimpleNamespace(gate_at=512, done_at=768)
        self.clock.queue_s = QUEUE_S
        self.clock.task, self.clock.device = SimpleNamespace(memory=memory), torch.device("cuda")  # type: ignore[assignment]
        self.clock.flushed = SimpleNamespace(zero_=lambda: self.note("flush"))  # type: ignore[assignment]
        self.clock.places = self.clock._looked_at = torch.empty(0)
        self.clock._side = None  # type: ignore[assignment]
        stamp = SimpleNamespace(
            record=lambda: self.note("stamp"), synchronize=lambda: self.note("done"), elapsed_time=lambda other: 2.0
        )
        self.clock._stamps = [stamp, stamp]  # type: ignore[list-item]
        self.outputs = SimpleNamespace(bytes=SimpleNamespace(data_ptr=lambda: 0))
        self.region = SimpleNamespace(copy_=lambda staged: self.note("inputs"))
        self.max_request_s = 1.0

    def note(self, event: str) -> None:
        self.events.append(event)
        if event == self.fails_at:
            raise ValueError(event)

    def __enter__(self) -> None:
        self.note("aside")

    def __exit__(self, *_: object) -> None:
        pass

    def shut(self) -> None:
        self.note("shut")

    def open(self) -> None:
        self.note("open")

    def await_reached(self) -> None:
        self.note("reached")

    def write_later(self, address: int, number: int, device: object) -> None:
        assert number == 7
        self.note(f"write {address}")

    def await_queued(self, most_s: float) -> bool:
        self.note(f"queued {most_s / QUEUE_S:g}")
        return not self.is_late

    def answer(self, *_: object) -> str:
        self.note("answer")
        return "frame"

    def measure(self) -> tuple[float, float, Any]:
        link: Any = self
        region: Any = self.region
        sent = Sent(Asked(link, 3, None), number=7, asked_at=time.perf_counter())
        return self.clock._on_gpu(sent, region, torch.empty(0))


IN_LINE = ["look", "shut", "stamp", "inputs", "flush", "write 512", "wait 768", "look", "stamp", "queued 3"]
RELEASE = ["aside", "write 768"]


def test_all_work_between_the_two_time_stamps_is_in_line_before_the_gate_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes = Fakes(monkeypatch)
    assert fakes.measure() == (2e-3, 0.0, "frame")
    assert fakes.events == [*IN_LINE, "reached", "open", "answer", *RELEASE, "done"]


def test_clock_returns_the_launching_time_if_launches_were_not_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch, is_late=True)
    taken_s, launching_s, _ = fakes.measure()
    assert taken_s == 2e-3
    assert 0.0 < launching_s < 1.0


@pytest.mark.parametrize("fails_at", ["inputs", "reached", "answer"])
def test_gate_opens_and_the_stream_continues_after_an_error(monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    fakes = Fakes(monkeypatch, fails_at)
    with pytest.raises(ValueError, match=fails_at):
        fakes.measure()
    assert "open" in fakes.events
    assert fakes.events[-2:] == RELEASE


class FakeLink:
    """A fake link, which records its requests and answers."""

    def __init__(self, name: str, events: list[str], was_in_line: bool = True) -> None:
        self.name, self.events, self.was_in_line, self.max_request_s = name, events, was_in_line, 1.0
        self.outputs = SimpleNamespace(bytes=torch.zeros(1024, dtype=torch.uint8))

    def ask(self, say: Say, *values: int) -> None:
        assert say is Say.CALL
        assert values[5] != 0
        self.events.append(f"ask {self.name}")

    def answer(self, *_: object) -> None:
        self.events.append(f"answer {self.name}")


def in_turn(
    monkeypatch: pytest.MonkeyPatch, order: str, *, in_line: str = "RC", fails_at: int = -1, device: str = "cuda"
) -> list[str]:
    """Return the events if a clock measures requests to the reference (R) and the candidate (C) in this order."""
    events: list[str] = []
    links: dict[str, Any] = {name: FakeLink(name, events, name in in_line) for name in "RC"}
    clock, measured = RequestClock.__new__(RequestClock), 0

    def measure(sent: Sent, region: object, staged: object) -> tuple[float, float, Any]:
        nonlocal measured
        events.append(f"measure {sent.asked.link.name}")  # type: ignore[attr-defined]
        measured += 1
        if measured == fails_at:
            raise Judged(Outcome.TIMEOUT, "late")
        return float(measured), 0.0, SimpleNamespace(status=Status.OK)

    clock._on_gpu = clock._on_host = measure  # type: ignore[method-assign]
    clock.device, clock.flushed = torch.device(device), torch.empty(0) if device == "cuda" else None
    memory = SimpleNamespace(gate_at=512, region=lambda variant, calls: torch.zeros(8))
    clock.task = SimpleNamespace(memory=memory, draws=SimpleNamespace(poison=None))  # type: ignore[assignment]
    clock.variant = SimpleNamespace(output_stride=16)  # type: ignore[assignment]
    clock.checker = SimpleNamespace(link=links["C"])  # type: ignore[assignment]
    module = "kernel_coder.judge.examiner.timing.clock"
    monkeypatch.setattr(f"{module}.fill_random", lambda *_: events.append("fill"))
    monkeypatch.setattr(f"{module}.write_later", lambda *_: events.append("go"))
    asked = [Asked(links[name], 2, None) for name in order]
    if fails_at < 0:
        assert [one.taken_s for one in clock.measure_all(asked)] == [*range(1, len(order) + 1)]
    else:
        with pytest.raises(Judged):
            clock.measure_all(asked)
    return [one for one in events if one != "fill"]


def test_on_a_gpu_a_runner_gets_its_next_request_while_the_other_runner_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = in_turn(monkeypatch, "RRCRCC")
    measured = [place for place, event in enumerate(events) if event.startswith("measure")]
    assert [events[place][-1] for place in measured] == list("RRCRCC")
    for count, place in enumerate(measured):
        before = events[: place + 1]
        for name in "RC":  # a Runner gets each request once, and never two at a time
            done, left = before.count(f"measure {name}"), "RRCRCC"[count + 1 :].count(name)
            is_measured = events[place][-1] == name
            assert before.count(f"ask {name}") == done + (0 if is_measured else min(left, 1))


def test_runner_with_late_launches_gets_no_request_while_the_other_runner_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = ["ask R", "measure R", "ask C", "measure C"]
    assert in_turn(monkeypatch, "RCRC", in_line="") == 2 * both
    assert in_turn(monkeypatch, "RCRC", in_line="R") == [*both[:3], "ask R", *both[3:], "measure R", *both[2:]]


def test_on_a_cpu_no_runner_gets_a_request_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_turn(monkeypatch, "RCRC", device="cpu") == ["measure R", "measure C"] * 2


@pytest.mark.parametrize(("order", "left"), [("CR", ["go", "answer R"]), ("RC", [])])
def test_after_a_failure_the_reference_s_runner_ends_its_request(
    monkeypatch: pytest.MonkeyPatch, order: str, left: list[str]
) -> None:
    events = in_turn(monkeypatch, order, fails_at=1)
    assert events == [f"ask {order[0]}", f"ask {order[1]}", f"measure {order[0]}", *left]


def test_inputs_of_another_family_come_often_enough_and_at_secret_places() -> None:
    places = set()
    for _ in range(200):
        found = RequestMaker.__new__(RequestMaker)
        found._until_strange = STRANGE_EVERY - 1
        are_strange = [found._is_strange() for _ in range(20 * STRANGE_EVERY)]
        assert all(any(are_strange[at : at + STRANGE_EVERY]) for at in range(len(are_strange) - STRANGE_EVERY))
        places.add(are_strange.index(True, STRANGE_EVERY))
        assert sum(are_strange) < len(are_strange) / 2
    assert len(places) == STRANGE_EVERY


QUANTIZES = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.round(x * 3).to(torch.int8), x.argmax(1)
def get_inputs():
    x = torch.randn(8, 32)
    x[0, 0], x[1, 2], x[1, 5] = 0.5 / 3, 9.0, 9.0
    return [x]
def get_init_inputs():
    return []
"""


def test_integers_of_timed_calls_may_be_rounded_the_other_way() -> None:
    task = {"reference": QUANTIZES, "entry_point": "Model", "precision": "fp32"}
    made = PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(0), GpuTurns())
    maker = RequestMaker(SimpleNamespace(task=made))  # type: ignore[arg-type]
    maker._until_strange = 9  # all calls are on the task's own inputs
    request = maker.make(3, is_candidate=True, is_kept=True)
    numbers, places = request.expected
    other = numbers.clone()
    other[:, 0, 0] = 1 - other[:, 0, 0]  # 0.5 is rounded to 0 or 1
    assert maker.has_same_integers(request, 0, other)
    other[1, 2, 3] += 1
    assert not maker.has_same_integers(request, 0, other)
    elsewhere = places.clone()
    elsewhere[:, 1] = 7 - elsewhere[:, 1]  # the numbers at 2 and 5 are equal
    assert maker.has_same_integers(request, 1, elsewhere)
    assert not maker.has_same_integers(request, 1, places + 1)


@pytest.mark.parametrize(("new", "correct"), [("x * (1 / scale)", True), ("x / scale + 0.02", False)])
def test_quantization_by_a_reciprocal_is_correct_in_timed_calls(new: str, correct: bool, device: str) -> None:
    """One of its integers in 100,000 is rounded the other way, so most verdicts see one."""
    reference = corpus.tasks()["row_int8"].source
    candidate = reference.replace("Model", "ModelNew").replace("x / scale", new)
    with Judge(device, "torch", config=JudgeConfig(timed_calls=40, profile=False, workers=1)) as judge:
        verdict = judge.evaluate(reference, candidate)
    assert verdict.correct == correct, verdict.reason
    assert correct == (verdict.speedup is not None)


def link_to_runner() -> tuple[Link, Channel]:
    ours, theirs = Channel.pair()
    return Link(ours, -1, None, bytearray(8), 300.0), theirs  # type: ignore[arg-type]


def asked(link: Link, runner: Channel) -> None:
    link.ask(Say.CALL, 0, 1)
    assert runner.receive(timeout_s=1.0).kind == Say.CALL


def test_number_that_the_examiner_waits_for_is_written_even_after_a_failed_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[str, int, int]] = []
    for name, what in (("wait_for", "wait"), ("write_later", "write")):
        monkeypatch.setattr(runner_module, name, lambda place, number, _, what=what: done.append((what, place, number)))
    outputs = SimpleNamespace(bytes=torch.zeros(8, dtype=torch.uint8))
    said: list[str] = []
    one = SimpleNamespace(
        outputs=outputs, plan={"gate_at": 0, "done_at": 4}, device="cuda", say_queued=lambda: said.append("queued")
    )
    start = outputs.bytes.data_ptr()
    behind_gate = runner_module.Candidate._behind_gate
    with pytest.raises(RuntimeError, match="in the call"), behind_gate(one, 7):  # type: ignore[arg-type]
        raise RuntimeError("in the call")
    assert (done, said) == ([("wait", start, 7), ("write", start + 4, 7)], [])
    with behind_gate(one, 8):  # type: ignore[arg-type]
        pass
    assert (done[2:], said) == ([("wait", start, 8), ("write", start + 4, 8)], ["queued"])
    with behind_gate(one, 0):  # type: ignore[arg-type]
        pass
    assert len(done) == 4


@pytest.mark.parametrize("calls", [0, 7])
def test_link_asks_the_runner_to_prepare_for_calls_and_waits_for_its_answer(calls: int) -> None:
    link, runner = link_to_runner()
    runner.send(Say.PING)
    link.prepare(calls)
    frame = runner.receive(timeout_s=1.0)
    assert frame.kind == Say.PING
    assert list(frame.values[:3]) == [0, calls, 0]
    asked(link, runner)  # the answer was taken from the channel
    runner.send(Say.CALL, values=(3,))
    assert link.answer(Say.CALL).values[0] == 3


def test_link_returns_the_answer_after_the_queued_message() -> None:
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


def test_link_returns_the_answer_if_the_queued_message_comes_late() -> None:
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


def test_link_returns_a_failure_at_once_if_it_comes_instead_of_the_queued_message() -> None:
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
def test_runner_that_sends_an_unexpected_or_second_queued_message_is_rejected(awaited: bool) -> None:
    link, runner = link_to_runner()
    asked(link, runner)
    runner.send(Say.QUEUED)
    if awaited:
        link.await_queued(10.0)
        runner.send(Say.QUEUED)
    with pytest.raises(Judged, match="it wrote to the judge's channel"):
        link.answer(Say.CALL)


def test_runner_that_ends_before_the_queued_message_has_crashed() -> None:
    link, runner = link_to_runner()
    asked(link, runner)
    runner.close()
    with pytest.raises(Judged, match="its process ended"):
        link.await_queued(10.0)


@pytest.mark.gpu
def test_stream_waits_until_the_gate_opens(device: str) -> None:
    gate = gate_of(torch.device(device))
    assert gate is not None
    x, y = torch.zeros(8, device=device), torch.arange(8.0, device=device)
    number = torch.zeros(1, dtype=torch.int32, device=device)
    # Create them before the gate is shut, because that waits for the GPU.
    side, event = torch.cuda.Stream(), torch.cuda.Event()
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
def test_clock_measures_the_gpu_time_of_a_call(device: str, size: int) -> None:
    """The CPU's time does not count while the GPU has work. It counts if the call waits for the GPU, or if launching
    takes longer than the GPU's work."""
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


def in_requests(empty_s: float, known_s: float, could_reach_runner: bool = False, kind: str = "cuda") -> Speedup:
    """Return the speedup for calls of 30 and 20 microseconds. An empty request takes `empty_s` in turn, and took
    `known_s` before."""
    known = baseline(30e-6, kind, costs=Costs(known_s - 80e-6, 10e-6))
    rounds = rounds_of(30e-6, 20e-6)
    for party in ("reference", "candidate", "empty"):
        rounds.taken_s[party] = [420e-6 + one for one in rounds.taken_s[party]]
    rounds.taken_s["empty"] = [empty_s] * 18
    return Speedup(rounds, known, could_reach_runner=could_reach_runner)


def test_cost_of_a_request_is_the_time_of_an_empty_request_in_turn() -> None:
    found = in_requests(420e-6, 418e-6)
    assert not found.is_slow
    verdict = found.findings()
    assert verdict["speedup"] == pytest.approx(1.5)
    assert verdict["reference_ms"] == pytest.approx(30e-3)
    assert verdict["runtime_ms"] == pytest.approx(20e-3)
    lower = in_requests(390e-6, 390e-6).findings()
    assert lower["speedup"] == pytest.approx(300 / 210)


def test_candidate_that_slows_empty_requests_gains_almost_nothing() -> None:
    honest, long = in_requests(420e-6, 420e-6).findings(), in_requests(500e-6, 420e-6).findings()
    assert long["speedup"] == pytest.approx((270 - 1e6 * DRIFT_S) / (180 - 1e6 * DRIFT_S), rel=0.01)
    assert long["speedup_low"] == pytest.approx(honest["speedup_low"], rel=3e-3)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_lower_bound_excludes_the_gain_of_a_candidate_that_could_skip_copying_its_outputs(kind: str) -> None:
    """A request has nine calls. Copying the outputs of each takes 10 microseconds, which the candidate could skip."""
    plain, careful = (in_requests(420e-6, 420e-6, reaches, kind).findings() for reaches in (False, True))
    assert plain["speedup"] == pytest.approx(1.5)
    assert plain["speedup_low"] > 1.25
    if kind == "cuda":
        assert careful["speedup_low"] == pytest.approx(270 / (180 + 80 + 1e6 * EARLY_S), rel=0.05)
    else:
        assert careful["speedup_low"] == pytest.approx(UNSURE)
    assert {**careful, "speedup_low": 0} == {**plain, "speedup_low": 0}


def test_places_that_are_read_back_do_not_depend_on_the_seed_of_torch() -> None:
    """A candidate that sees 2,000 words of torch's generator on a CPU can compute all later ones."""
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
