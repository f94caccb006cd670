"""A fixed sequence of tasks with its dropped rows, a fingerprint, and splits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, overload

from kernel_coder.tasks.task import Task


class Problem(NamedTuple):
    """A dropped row and the reason.

    >>> print(Problem("pairs.jsonl", 3, "a1", "the reference has no class Model"))
    pairs.jsonl row 3 (uuid a1): the reference has no class Model
    """

    source: str
    row: int  # counted from 1
    uuid: str | None
    reason: str

    def __str__(self) -> str:
        uuid = "" if self.uuid is None else f" (uuid {self.uuid})"
        return f"{self.source} row {self.row}{uuid}: {self.reason}"


class TaskSet(Sequence[Task]):
    """Tasks in a fixed order.

    Args:
        tasks: the tasks.
        problems: the rows that were dropped while loading.
        source: origin of the tasks, for :meth:`summary`.

    >>> tasks = TaskSet([Task(id=f"t{i}", source="example", reference="...") for i in range(4)])
    >>> len(tasks), tasks[0].id, tasks.limit(2)[-1].id
    (4, 't0', 't1')
    >>> train, held_out = tasks.split(0.5, seed=0)
    >>> sorted(task.id for task in [*train, *held_out])
    ['t0', 't1', 't2', 't3']
    """

    def __init__(self, tasks: Iterable[Task], problems: Iterable[Problem] = (), source: str = "") -> None:
        self._tasks = tuple(tasks)
        self.problems = tuple(problems)
        self.source = source

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...
    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        if isinstance(index, slice):
            return TaskSet(self._tasks[index], self.problems, self.source)
        return self._tasks[index]

    def __repr__(self) -> str:
        return f"<TaskSet {self.summary()}>"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tasks in order: their ids, sources, entry points, backends and precisions.

        It is the same on every machine and for every file format with the same rows; ``source`` and ``metadata`` do not
        count.
        """
        digest = hashlib.sha256()
        for task in self._tasks:
            for text in (task.id, task.reference, task.solution, task.entry_point, task.backend, task.precision):
                # The length before each text distinguishes ("ab", "c") from ("a", "bc"); -1 distinguishes None from "".
                content = b"" if text is None else text.encode("utf-8", "surrogatepass")
                digest.update(b"%d:" % (-1 if text is None else len(content)))
                digest.update(content)
        return digest.hexdigest()

    def summary(self) -> str:
        """Return a one-line description.

        >>> TaskSet([Task(id="a", source="s", reference="...")], source="pairs.jsonl").summary()[:57]
        'pairs.jsonl: 1 task, 0 with a known solution, 0 rows drop'
        """
        solved = sum(task.solution is not None for task in self._tasks)
        return (
            f"{self.source or 'tasks'}: {_count(len(self), 'task')}, {solved:,} with a known solution, "
            f"{_count(len(self.problems), 'row')} dropped, fingerprint {self.fingerprint[:12]}"
        )

    def limit(self, count: int | None) -> TaskSet:
        """Return the first ``count`` tasks; None: all."""
        if count is not None and count < 1:
            raise ValueError(f"limit must be at least 1 or None; got {count}")
        return self[:count]

    def pick(self, numbers: Iterable[int]) -> TaskSet:
        """Return the tasks with these numbers, in the order of this set; see :func:`task_numbers`.

        Raises:
            ValueError: a number belongs to no task.

        >>> tasks = TaskSet([Task(id=f"level1/{i}_x", source="example", reference="...") for i in (19, 20, 100)])
        >>> [task.id for task in tasks.pick([100, 19])]
        ['level1/19_x', 'level1/100_x']
        """
        wanted, own = set(numbers), task_numbers(self._tasks)
        if missing := sorted(wanted - set(own)):
            raise ValueError(
                f"there is no problem {', '.join(map(str, missing))}; {self.source or 'the set'} has "
                f"{_count(len(self), 'problem')}, numbered {min(own)} to {max(own)}"
            )
        chosen = (task for task, number in zip(self._tasks, own, strict=True) if number in wanted)
        return TaskSet(chosen, self.problems, self.source)

    def split(self, eval_fraction: float, seed: int = 0) -> tuple[TaskSet, TaskSet]:
        """Return the tasks for training and those for evaluation, each in the order of this set.

        The side of a task depends only on its id and the seed, not on the other tasks. So the share of evaluation tasks
        is only approximately ``eval_fraction``, and a side of a small set can be empty.
        """
        if not 0.0 <= eval_fraction <= 1.0:
            raise ValueError(f"eval_fraction must lie between 0 and 1; got {eval_fraction}")
        held_out = [_position(task.id, seed) < eval_fraction for task in self._tasks]
        train = [task for task, out in zip(self._tasks, held_out, strict=True) if not out]
        evaluation = [task for task, out in zip(self._tasks, held_out, strict=True) if out]
        return TaskSet(train, self.problems, self.source), TaskSet(evaluation, (), self.source)

    def hold_out(self, num_tasks: int, seed: int = 0) -> tuple[TaskSet, TaskSet]:
        """Split like :meth:`split`, with exactly ``num_tasks`` evaluation tasks: those with the smallest hashes of
        their ids.

        If tasks are added, an evaluation task can become a training task, but an old training task never changes side.

        >>> tasks = TaskSet([Task(id=f"t{i}", source="example", reference="...") for i in range(4)])
        >>> [len(side) for side in tasks.hold_out(1)]
        [3, 1]
        """
        if not 0 <= num_tasks <= len(self):
            raise ValueError(f"cannot hold out {num_tasks} of {_count(len(self), 'task')}")
        first = {
            task.id for task in sorted(self._tasks, key=lambda task: (_position(task.id, seed), task.id))[:num_tasks]
        }
        train = [task for task in self._tasks if task.id not in first]
        evaluation = [task for task in self._tasks if task.id in first]
        return TaskSet(train, self.problems, self.source), TaskSet(evaluation, (), self.source)


def task_numbers(tasks: Sequence[Task]) -> list[int]:
    """Return the number of each task: KernelBench's, from its table or the beginning of a file's name.

    If a task has none, all tasks are numbered from 1. KernelBench's levels use the same numbers.
    """
    numbers: list[int] = []
    for task in tasks:
        begun = re.match(r"(\d+)_", task.id.rpartition("/")[2])
        number = task.metadata.get("problem_id", int(begun[1]) if begun else None)
        if not isinstance(number, int):
            return list(range(1, len(tasks) + 1))
        numbers.append(number)
    return numbers


def _position(task_id: str, seed: int) -> float:
    """Return a hash of the id and the seed, in [0, 1)."""
    digest = hashlib.sha256(f"{seed}\0{task_id}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
