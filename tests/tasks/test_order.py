"""The order in which answers to many tasks are judged."""

from __future__ import annotations

import random

import pytest
from kernel_coder.tasks.order import in_turn

pytestmark = pytest.mark.cpu


def slow_order(items: list[tuple[int, int]], at_once: int) -> list[tuple[int, int]]:
    """An independent definition: sorted by the task's block, then by the item's place among the task's items."""
    tasks = list(dict.fromkeys(task for task, _ in items))
    place = {item: sum(other[0] == item[0] for other in items[:i]) for i, item in enumerate(items)}
    return sorted(items, key=lambda item: (tasks.index(item[0]) // at_once, place[item], tasks.index(item[0])))


@pytest.mark.parametrize("seed", range(40))
def test_tasks_take_turns_and_each_tasks_items_keep_their_order(seed: int) -> None:
    rng = random.Random(seed)
    items = [(rng.randrange(rng.randint(1, 9)), number) for number in range(rng.randrange(40))]
    at_once = rng.randint(1, 10)
    assert in_turn(items, lambda item: item[0], at_once) == slow_order(items, at_once)


def test_with_one_task_at_once_the_tasks_follow_each_other() -> None:
    assert in_turn(["b1", "a1", "b2"], lambda item: item[0], 1) == ["b1", "b2", "a1"]


def test_empty_list_is_allowed_and_at_once_of_zero_is_refused() -> None:
    assert in_turn([], lambda item: item, 3) == []
    with pytest.raises(ValueError, match="at_once must be at least 1; got 0"):
        in_turn(["a"], lambda item: item, 0)
