"""In which order answers to many tasks are judged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import zip_longest
from typing import TypeVar

T = TypeVar("T")


def in_turn(items: Sequence[T], task_of: Callable[[T], Hashable], at_once: int) -> list[T]:
    """The items of the first `at_once` tasks, one of each in turn, then those of the next ones.

    A judge prepares a task for each worker that is at it. With a task's answers next to each other all workers would be
    at the same task, and then all at the next; with those of too many tasks between them, a worker would have forgotten
    a task before the next answer to it comes.

    Args:
        items: in any order, which stays that of each task's items and of the tasks.
        task_of: the task of an item.
        at_once: tasks that take turns, at least 1: each task on its own.

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
