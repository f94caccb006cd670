"""Schedules of weights."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.rewards import RewardError, Schedule


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@settings(deadline=None)
@given(start=st.integers(0, 50), length=st.integers(1, 50), ends=st.tuples(st.floats(-2, 2), st.floats(-2, 2)))
def test_a_decay_is_exact_at_its_ends_monotone_between_and_constant_outside(
    kind: str, start: int, length: int, ends: tuple[float, float]
) -> None:
    schedule = Schedule(kind=kind, start_step=start, end_step=start + length, initial=ends[0], final=ends[1])
    values = [schedule(step) for step in range(start + length + 3)]
    assert values[: start + 1] == [ends[0]] * (start + 1)
    assert values[start + length :] == [ends[1]] * 3
    sign = 1 if ends[1] >= ends[0] else -1
    assert all(sign * (after - before) >= -1e-12 for before, after in pairwise(values))


def test_linear_and_cosine_decay_are_equal_halfway_and_cosine_starts_slower() -> None:
    linear, cosine = (Schedule(kind=kind, end_step=100) for kind in ("linear", "cosine"))
    assert linear(50) == pytest.approx(cosine(50)) == pytest.approx(0.5)
    assert cosine(10) > linear(10)


def test_stages_switch_at_their_steps() -> None:
    schedule = Schedule(kind="stages", stages={500: 0.5, 0: 1.0, 800: 0.0})
    assert [schedule(step) for step in (0, 499, 500, 799, 800, 10**9)] == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("value", [None, "constant", {"kind": "constant"}, {}, Schedule()])
def test_constant_is_the_default_in_every_notation(value: Any) -> None:
    assert Schedule.parse(value)(123) == 1.0


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("linaer", "schedule kind must be one of constant, linear, cosine, stages; got 'linaer'"),
        ({"kind": "linear"}, "schedule linear needs end_step, the step at which the factor is final"),
        ({"kind": "linear", "end_step": 0}, "schedule linear needs 0 <= start_step < end_step; got 0 and 0"),
        ({"kind": "linear", "end": 5}, "schedule has no field end; it has kind, start_step, end_step, initial, final"),
        ({"end_step": 5}, "schedule constant has no end_step; linear and cosine have"),
        ({"kind": "stages"}, "schedule stages needs factors by step, the first at step 0; got None"),
        ({"kind": "stages", "stages": {5: 1.0}}, "schedule stages needs factors by step, the first at step 0; got"),
        ({"kind": "stages", "stages": {"x": 1.0}}, "the steps of a schedule must be whole numbers; got"),
        ({"stages": {0: 1.0}}, "schedule constant has no stages; set kind: stages"),
        ({"kind": "stages", "stages": {0: float("nan")}}, "a schedule's stage must be a finite number; got nan"),
        ({"kind": "linear", "end_step": 5, "final": "0"}, "schedule final must be a finite number; got '0'"),
        (3, "schedule must be the name of a kind or its fields; got 3"),
    ],
)
def test_a_mistake_gets_one_clear_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(RewardError) as caught:
        Schedule.parse(value)
    assert str(caught.value).startswith(sentence)
