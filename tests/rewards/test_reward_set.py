"""Combining rewards: weights, None, failures, async functions, and the typical mistakes."""

from __future__ import annotations

import asyncio
import logging
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.rewards import RewardError, RewardPart, RewardSet, RewardTable, reward_preset
from kernel_coder.tasks import Task

HERE = f"{__name__}:"
values = st.none() | st.floats(-10, 10)


def column_a(prompts: Any, completions: Any, a: list[Any]) -> Any:
    return a


def column_b(prompts: Any, completions: Any, b: list[Any]) -> Any:
    return b


def raises(prompts: Any, completions: Any) -> Any:
    raise RuntimeError("the device is gone")


def misused(prompts: Any, completions: Any) -> Any:
    raise RewardError("there is no such device")


async def waits(prompts: Any, completions: Any, *, seconds: float = 0.0) -> list[float]:
    await asyncio.sleep(seconds)
    return [1.0 for _ in completions]


async def waits_and_raises(prompts: Any, completions: Any) -> list[float]:
    await asyncio.sleep(0)
    raise ConnectionError("no answer")


meeting: list[str] = []


async def meets(prompts: Any, completions: Any, *, name: str) -> list[float]:
    """Ends only if a second call of this reward runs at the same time."""
    meeting.append(name)
    while len(meeting) < 2:
        await asyncio.sleep(0.001)
    return [1.0 for _ in completions]


def score(parts: list[Any], *, count: int = 2, strict: bool = False, step: int = 0, **columns: Any) -> RewardTable:
    return RewardSet(parts, strict=strict)(["?"] * count, ["x"] * count, step=step, **columns)


def part(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": HERE + name, **fields}


# The sum


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(values, values), min_size=1, max_size=6),
    weights=st.tuples(st.floats(-3, 3), st.floats(0.1, 3)),
)
def test_total_is_the_weighted_sum_of_the_rewards_that_apply(rows: list[Any], weights: tuple[float, float]) -> None:
    parts = [part("column_a", weight=weights[0]), part("column_b", weight=weights[1])]
    a, b = [row[0] for row in rows], [row[1] for row in rows]
    table = score(parts, count=len(rows), a=a, b=b)
    weighted = np.array([[math.nan if v is None else v for v in row] for row in rows]) * np.array(weights)
    weighted = weighted[:, np.array(weights) != 0]
    for total, row in zip(table.total, weighted, strict=True):
        if np.isnan(row).all():
            assert total is None
        else:
            assert total == pytest.approx(np.nansum(row))
    assert table.parts == {"column_a": a, "column_b": b}
    assert table.num_errors == 0


def test_total_is_none_and_not_zero_if_every_part_is_none() -> None:
    assert score([part("column_a"), part("column_b")], a=[None, 0.0], b=[None, None]).total == [None, 0.0]


def test_required_and_strict_parts_leave_a_total_only_where_they_apply() -> None:
    columns = {"a": [None, 1.0], "b": [1.0, None]}
    assert score([part("column_a"), part("column_b")], **columns).total == [1.0, 1.0]
    assert score([part("column_a", required=True), part("column_b")], **columns).total == [None, 1.0]
    assert score([part("column_a"), part("column_b")], strict=True, **columns).total == [None, None]


def test_part_of_weight_zero_is_reported_and_does_not_change_a_total() -> None:
    table = score([part("column_a", weight=0.0, required=True), part("column_b")], a=[None, math.nan], b=[1.0, 2.0])
    assert table.total == [1.0, 2.0]
    assert table.parts["column_a"] == [None, None]
    assert table.num_errors == 1


def test_a_schedule_changes_the_weight_with_the_step() -> None:
    decaying = part("column_a", weight=2.0, schedule={"kind": "linear", "end_step": 10})
    parts = [decaying, part("column_b")]
    columns = {"a": [1.0, None], "b": [1.0, 1.0]}
    assert score(parts, step=0, **columns).total == [3.0, 1.0]
    assert score(parts, step=5, **columns).total == [2.0, 1.0]
    table = score(parts, step=10, **columns)
    assert table.total == [1.0, 1.0]
    assert table.weights == {"column_a": 0.0, "column_b": 1.0}
    assert score([decaying], step=10, a=[1.0, None]).total == [0.0, 0.0]


def test_parts_can_be_objects_mappings_or_names_and_have_labels() -> None:
    config = SimpleNamespace(name=HERE + "column_a", weight=2.0, params={}, schedule=None, comment="not a field")
    rewards = RewardSet([config, RewardPart(name="format", label="form"), "format", part("column_a", label="again")])
    assert rewards.labels == ("column_a", "form", "format", "again")
    assert rewards.weights(0)["column_a"] == 2.0


@pytest.mark.parametrize(
    "returned",
    [torch.tensor([1.0, 0.5]), np.array([1.0, 0.5]), [np.float32(1.0), torch.tensor(0.5)], (True, 0.5), [1, 0.5]],
)
def test_numbers_of_every_type_are_accepted(returned: Any) -> None:
    table = score([part("column_a")], a=returned)
    assert table.total == [1.0, 0.5]
    assert all(type(value) is float for value in table.total)


def test_empty_batch_has_no_totals() -> None:
    assert score([part("column_a"), part("waits")], count=0, a=[]).total == []


def test_preset_kernel_coder_scores_answers_with_solutions_from_tasks() -> None:
    solution = "class ModelNew: ..."
    tasks = [
        Task(id=str(i), source="test", reference="...", solution=known) for i, known in enumerate([solution, None])
    ]
    answer = f"<thinking>why</thinking>\n<answer>\n```python\n{solution}\n```\n</answer>"
    rewards = RewardSet(reward_preset("kernel_coder"))
    table = rewards(["?"] * 4, [answer, answer, "", ""], task=[*tasks, *tasks], finish_reason=["stop"] * 4)
    assert table.total == [2.0, 1.0, 0.0, 0.0]
    assert table.parts["similarity"] == [1.0, None, 0.0, None]


# Failures are None, never 0


def test_a_reward_that_raises_leaves_its_batch_unscored_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        table = score([part("raises"), part("column_a")], a=[1.0, 2.0])
    assert table.total == [None, None]
    assert table.parts == {"raises": [None, None], "column_a": [1.0, 2.0]}
    assert [tuple(failure) for failure in table.errors["raises"]] == [
        (0, "RuntimeError: the device is gone"),
        (1, "RuntimeError: the device is gone"),
    ]
    assert table.num_errors == 2
    assert caplog.messages == [
        "reward raises could not score 2 of 2 completions; the first, at position 0: RuntimeError: the device is gone"
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "1.0", [1.0], {}, torch.ones(2), 10**400])
def test_value_that_is_not_a_finite_number_leaves_its_completion_unscored(bad: Any) -> None:
    table = score([part("column_a"), part("column_b")], a=[bad, 1.0], b=[1.0, 1.0])
    assert table.parts["column_a"] == [None, 1.0]
    assert table.total == [None, 2.0]
    assert [failure.position for failure in table.errors["column_a"]] == [0]
    assert table.errors["column_a"][0].reason.endswith("is not a finite number")


def test_sum_that_overflows_gives_no_total() -> None:
    assert score([part("column_a", weight=10.0)], a=[1e308, 1.0]).total == [None, 10.0]


def test_failure_of_a_reward_of_weight_zero_does_not_change_totals() -> None:
    assert score([part("raises", weight=0.0), part("column_a")], a=[1.0, 2.0]).total == [1.0, 2.0]


# Async


def test_async_rewards_run_concurrently() -> None:
    meeting.clear()
    parts = [part("meets", params={"name": name}, label=name) for name in "ab"]
    assert score(parts).total == [2.0, 2.0]
    assert sorted(meeting) == ["a", "b"]


def test_async_reward_that_raises_does_not_affect_other_rewards() -> None:
    table = score([part("waits_and_raises", weight=0.0), part("waits")])
    assert table.total == [1.0, 1.0]
    assert table.errors["waits_and_raises"][0].reason == "ConnectionError: no answer"


def test_async_rewards_run_inside_a_running_event_loop() -> None:
    async def in_a_notebook() -> RewardTable:
        return score([part("waits")])

    assert asyncio.run(in_a_notebook()).total == [1.0, 1.0]


# Mistakes stop the run


def test_a_wrong_number_of_values_is_fatal() -> None:
    with pytest.raises(RewardError, match="reward column_a returned 3 values for 2 completions"):
        RewardSet([part("column_a")])(["?"] * 2, ["x"] * 2, a=np.ones(3))


def test_value_that_is_not_a_list_is_fatal() -> None:
    with pytest.raises(RewardError, match=r"reward column_a must return a list with a number or None .* got float"):
        RewardSet([part("column_a")])(["?"], ["x"], a=1.0)


def test_reward_error_raised_by_a_reward_is_fatal_and_leaves_no_coroutine() -> None:
    with pytest.raises(RewardError, match="there is no such device"):
        score([part("waits"), part("misused")])


def test_a_missing_column_is_fatal() -> None:
    with pytest.raises(RewardError, match=r"reward .*column_a needs the column a; the columns are b, step"):
        score([part("column_a")], b=[1.0, 1.0])
    with pytest.raises(RewardError, match="needs the column solution or the column task; got neither"):
        score(["similarity"])


def test_column_of_the_wrong_length_is_fatal() -> None:
    with pytest.raises(RewardError, match="the column a has 3 values for 2 completions"):
        score([part("column_a")], a=[1.0, 2.0, 3.0])
    with pytest.raises(RewardError, match="the column prompts has 1 values for 2 completions"):
        RewardSet(["format"])(["?"], ["x", "y"])


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([], "rewards is empty; name at least one"),
        (["format", "format"], "two rewards are called format; give one of them a label"),
        ([{"name": "format", "weight": 0}], "every reward has weight 0; at least one must have another weight"),
        ([{"name": "format", "weight": math.nan}], "the weight of reward format must be a finite number; got nan"),
        ([{"name": "format", "weight": "1"}], "the weight of reward format must be a finite number; got '1'"),
        ([{"name": "format", "wieght": 1}], "a reward has no field wieght; it has name, weight, params, schedule"),
        ([{"weight": 1}], "a reward needs a name; got {'weight': 1}"),
        ([{"name": "format", "schedule": "fast"}], "reward format: schedule kind must be one of"),
        (["frmat"], "unknown reward frmat (did you mean format?)"),
        ([{"name": "format", "params": {"x": 1}}], "reward format has no parameter x; it has partial"),
    ],
)
def test_invalid_reward_set_is_refused_before_the_run(parts: list[Any], sentence: str) -> None:
    with pytest.raises(RewardError) as caught:
        RewardSet(parts)
    assert str(caught.value).startswith(sentence)
