"""The set of tasks: order, fingerprint, split."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.tasks import Problem, Task, TaskSet

ids = st.lists(st.text(min_size=1, max_size=8).filter(str.strip), unique=True, max_size=30)


def task(identity: str, **fields: str) -> Task:
    return Task(**{"id": identity, "source": "test", "reference": "class Model: ...", **fields})


def test_task_set_is_a_sequence_and_its_slices_are_task_sets() -> None:
    tasks = TaskSet([task("a"), task("b"), task("c")], [Problem("f", 1, None, "broken")], "f")
    assert [t.id for t in tasks[1:]] == ["b", "c"]
    assert tasks[1:].problems == tasks.problems
    assert tasks[-1].id == "c"
    assert tasks[0] in tasks
    assert len(tasks.limit(None)) == 3


@settings(deadline=None)
@given(names=ids, others=ids, seed=st.integers(0, 9), fraction=st.floats(0, 1))
def test_task_stays_on_its_side_of_the_split_when_tasks_are_added(
    names: list[str], others: list[str], seed: int, fraction: float
) -> None:
    few = TaskSet(map(task, names))
    more = TaskSet(map(task, dict.fromkeys([*others, *names])))
    for small, large in zip(few.split(fraction, seed), more.split(fraction, seed), strict=True):
        assert {t.id for t in small} <= {t.id for t in large}
    train, held_out = few.split(fraction, seed)
    assert sorted(t.id for t in [*train, *held_out]) == sorted(names)


def test_held_out_share_is_close_to_the_fraction_and_depends_on_the_seed() -> None:
    tasks = TaskSet(task(f"t{i}") for i in range(4000))
    sides = [[t.id for t in tasks.split(0.1, seed)[1]] for seed in (0, 1)]
    assert all(340 < len(side) < 460 for side in sides)  # 400, give or take three standard deviations
    assert sides[0] != sides[1]
    assert [len(side) for side in tasks.split(0.0)] == [4000, 0]
    assert [len(side) for side in tasks.split(1.0)] == [0, 4000]


def test_split_never_changes() -> None:
    tasks = TaskSet(task(f"t{i}") for i in range(12))
    assert [t.id for t in tasks.split(0.25, seed=0)[1]] == SPLIT_OF_TWELVE


SPLIT_OF_TWELVE = ["t3", "t4", "t6"]


@pytest.mark.parametrize("field", ["reference", "solution", "entry_point"])
def test_fingerprint_changes_with_the_text(field: str) -> None:
    plain = task("a")
    assert TaskSet([plain]).fingerprint != TaskSet([replace(plain, **{field: "other"})]).fingerprint


def test_fingerprint_ignores_source_and_metadata_but_not_the_order() -> None:
    a, b = task("a"), task("b")
    assert (
        TaskSet([a, b]).fingerprint == TaskSet([replace(a, source="elsewhere", metadata={"stars": 1}), b]).fingerprint
    )
    assert TaskSet([a, b]).fingerprint != TaskSet([b, a]).fingerprint
    assert TaskSet([replace(a, solution="")]).fingerprint != TaskSet([a]).fingerprint
    assert TaskSet([a]).fingerprint == FINGERPRINT_OF_A


FINGERPRINT_OF_A = "8d8db1d8a73c7722508ff9e9a802276d8c805844af8a1a65c6fe0fba3e35f955"


def test_summary_is_one_line() -> None:
    tasks = TaskSet([task("a", solution="x"), task("b")], [Problem("f", 1, None, "broken")], "pairs.jsonl")
    head = "pairs.jsonl: 2 tasks, 1 with a known solution, 1 row dropped, fingerprint "
    assert tasks.summary() == head + tasks.fingerprint[:12]
    assert head in repr(tasks)


def test_hold_out_takes_an_exact_number_and_smaller_sets_are_subsets() -> None:
    tasks = TaskSet(task(f"t{i}") for i in range(50))
    few, many = (tasks.hold_out(count, seed=1) for count in (3, 10))
    assert [len(side) for side in many] == [40, 10]
    assert {t.id for t in few[1]} <= {t.id for t in many[1]}
    assert [t.id for t in many[0]] == [t.id for t in tasks if t not in many[1]]
    with pytest.raises(ValueError, match="cannot hold out 51 of 50 tasks"):
        tasks.hold_out(51)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_split_refuses_a_share_outside_0_and_1(fraction: float) -> None:
    with pytest.raises(ValueError, match="eval_fraction must lie between 0 and 1; got"):
        TaskSet([task("a")]).split(fraction)


def test_limit_refuses_zero() -> None:
    with pytest.raises(ValueError, match="limit must be at least 1 or None; got 0"):
        TaskSet([task("a")]).limit(0)
