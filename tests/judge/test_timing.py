"""What is made of times: how many calls are asked for together, and which of the reference's times count."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_coder.judge.timing import SHOWN_BYTES, SLOW, Answer, Baseline, Timer

pytestmark = pytest.mark.cpu
NOISE = (1.0, 0.99, 1.01, 1.0, 1.02, 0.98)


def timer(reference_s: float, candidate_s: float, before_s: float, afterwards_s: float | None = None) -> Timer:
    """That has timed both in turn, and the reference before and, if it says so, afterwards."""
    found = Timer.__new__(Timer)
    found.baseline = Baseline(0.0, 0.0, 0.0, before_s, 0.0)
    found.pairs = [(reference_s * one, candidate_s * one) for one in NOISE * 3]
    found.alone = [] if afterwards_s is None else [afterwards_s * one for one in NOISE]
    found.compiled_s = None
    return found


@pytest.mark.parametrize(("slower", "expected"), [(0.9, False), (1.0, False), (SLOW - 0.1, False), (SLOW + 0.1, True)])
def test_a_reference_that_is_slower_than_without_the_candidate_is_noticed(slower: float, expected: bool) -> None:
    assert timer(2.0 * slower, 1.0, 2.0).is_slow is expected


def test_a_reference_that_is_fast_again_when_the_candidate_is_gone_counts_as_it_is_then() -> None:
    found = timer(4.0, 2.0, 2.0, 2.0).findings()
    assert found["speedup"] == pytest.approx(1.0)
    assert found["speedup_low"] <= 1 <= found["speedup_high"]
    assert found["reference_ms"] == pytest.approx(2000)
    assert max(found["reference_runtimes_ms"]) < 2100


def test_a_reference_that_stays_slow_was_slowed_by_somebody_else() -> None:
    found = timer(4.0, 2.0, 2.0, 4.0).findings()
    assert found["speedup"] == pytest.approx(2.0)
    assert found["reference_ms"] == pytest.approx(4000)
    assert found["speedup_low"] == pytest.approx(2.0, rel=0.05)


def test_what_is_sure_is_sure_by_the_faster_reference() -> None:
    """Below what is looked into, a candidate gains nothing by slowing down the reference."""
    even, slowed = timer(2.0, 2.0, 2.0).findings(), timer(2.3, 2.0, 2.0).findings()
    assert slowed["speedup"] == pytest.approx(1.15)
    assert slowed["speedup_low"] == pytest.approx(even["speedup_low"])
    faster_before = timer(2.0, 2.0, 4.0).findings()
    assert faster_before == even


@pytest.mark.parametrize(
    ("kind", "call_s", "slots", "expected"),
    [
        ("cuda", 20e-6, 64, 35),  # enough of them
        ("cuda", 20e-6, 16, 16),  # as many as there is room for
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

    class Fake(Timer):
        def _answers(self, links: list[Any], calls: int, *, timed: bool) -> list[Answer]:
            nothing = torch.empty(0)
            first = len(links) // 4
            times = [empty_s + call_s * (10 if place < first else 1) for place in range(len(links))]
            return [Answer(one, None, taken, nothing, nothing, None) for one, taken in zip(links, times, strict=True)]

        def _ping(self) -> float:
            return empty_s

    link = SimpleNamespace(ask=lambda *values: asked.append(values), answer=lambda say: None)
    found = Fake.__new__(Fake)
    found.session = SimpleNamespace(  # type: ignore[assignment]
        lock=None, device=SimpleNamespace(type=kind), config=SimpleNamespace(timed_calls=100)
    )
    found.variant = SimpleNamespace(slots=slots)  # type: ignore[assignment]
    found._find_rhythm([link, link])  # type: ignore[list-item]
    assert found.calls == expected
    assert found.round_s == pytest.approx(2 * (empty_s + expected * call_s))
    assert [values[2] for values in asked] == [expected, expected]


@pytest.mark.parametrize("kept_back", [False, True])
def test_the_clock_runs_before_anybody_sees_inputs_that_are_kept_back(
    monkeypatch: pytest.MonkeyPatch, kept_back: bool
) -> None:
    staged, region, events = torch.ones(8), torch.zeros(8), list[str]()

    def clock() -> float:
        events.append("inputs are there" if torch.equal(region, staged) else "no inputs yet")
        return float(len(events))

    monkeypatch.setattr("kernel_coder.judge.timing.time.perf_counter", clock)
    found = Timer.__new__(Timer)
    found.flushed = torch.ones(4)
    found.problem = SimpleNamespace(keeps_inputs_back=kept_back)  # type: ignore[assignment]
    found.session = SimpleNamespace(synchronise=lambda: None)  # type: ignore[assignment]
    started = found._started(region, staged)
    assert events[int(started) - 1] == ("no inputs yet" if kept_back else "inputs are there")
    assert torch.equal(region, staged)
    assert not found.flushed.any()


def test_what_is_shown_while_the_clock_runs_is_no_part_of_a_call() -> None:
    found = timer(1.0, 1.0, 1.0)
    found.baseline = Baseline(500e-6, 10e-6, 1e-12, 1.0, 0.0)
    found.variant = SimpleNamespace(input_stride=SHOWN_BYTES)  # type: ignore[assignment]
    nothing = torch.empty(0)
    taken = 500e-6 + 4 * 10e-6 + 3 * SHOWN_BYTES * 1e-12 + 4 * 25e-6
    answer = Answer(SimpleNamespace(), None, taken, nothing, nothing, None)  # type: ignore[arg-type]
    assert found._call_s(answer, 4) == pytest.approx(25e-6)
    assert found._call_s(answer._replace(taken=500e-6), 4) == pytest.approx(0.1 * 500e-6 / 4)
