"""The order in which answers to many tasks are judged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import zip_longest
from typing import TypeVar

T = TypeVar("T")


def in_turn(items: Sequence[T], task_of: Callable[[T], Hashable], at_once: int) -> list[T]:
    """Interleaves the items of ``at_once`` tasks at a time: one item of each task in turn.

    Each worker of a judge prepares a task before its first answer. If all answers to a task came together, every worker
    would prepare every task. If too many tasks were interleaved, a worker would drop a prepared task before its next
    answer.

    Args:
        items: the items; each task's items, and the tasks, keep their order.
        task_of: returns the task of an item.
        at_once: number of interleaved tasks, at least 1.

    >>> in_turn(["a1", "a2", "b1", "b2", "b3", "c1"], lambda item: item[0], 2)
    ['a1', 'b1', 'a2', 'b2', 'b3', 'c1']
    """
    if at_once < 1:
        raise ValueError(f"at_once must be at least 1; got {at_once}")
    by_task: dict[Hashable, list[T]] = {}
    for item in items:
        by_task.setdefault(task_of(item), []).append(item)
    tasks, ordered, nothing = list(by_task.values()), list[T](), object()
    for start in range(0, len(tasks), at_once):
        for row in zip_longest(*tasks[start : start + at_once], fillvalue=nothing):
            ordered += [item for item in row if item is not nothing]  # type: ignore[misc]
    return ordered
