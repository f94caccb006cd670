"""Chooses which candidate is judged next, and by which worker: if possible, by one that has its task prepared."""

from __future__ import annotations

import threading
from collections.abc import Container, Hashable, Sequence
from typing import Generic, Protocol, TypeVar


class Worker(Protocol):
    """Judges one candidate at a time."""

    @property
    def ready(self) -> Container[Hashable]:
        """Tasks that the worker has prepared."""

    @property
    def last(self) -> Hashable:
        """The task of the worker's last candidate. Another candidate of this task takes the least time."""


W = TypeVar("W", bound=Worker)


class _Caller(Generic[W]):
    """A thread that waits for a worker."""

    def __init__(self, task: Hashable) -> None:
        self.task = task
        self.passed_over = 0
        self.worker: W | None = None
        self.is_dismissed = False


class WorkerQueue(Generic[W]):
    """Workers, and the callers that wait for one.

    A free worker goes to the first of these callers that exists:

    1. the first caller in the queue, if it was passed over as often as there are workers,
    2. a caller whose task the worker had last,
    3. a caller whose task the worker has prepared,
    4. a caller whose task no busy worker works on or has prepared; others should wait for that worker,
    5. the first caller in the queue.

    >>> from types import SimpleNamespace
    >>> one, two = (SimpleNamespace(ready={task}, last=task) for task in ("a", "b"))
    >>> queue = WorkerQueue([one, two])
    >>> queue.take("a") is one, queue.take("c") is two
    (True, True)
    """

    def __init__(self, workers: Sequence[W]) -> None:
        self._workers = tuple(workers)
        self._free = list(workers)  # the worker that was given back last is the last one, and is taken first
        self._tasks: dict[int, Hashable] = {}  # tasks of the busy workers, by the worker's index
        self._waiting: list[_Caller[W]] = []
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def at_work(self) -> int:
        """Number of busy workers."""
        with self._changed:
            return len(self._tasks)

    def take(self, task: Hashable) -> W | None:
        """Wait for a worker. The caller must give it back. Return None after :meth:`dismiss` or :meth:`close`."""
        caller: _Caller[W] = _Caller(task)
        with self._changed:
            self._waiting.append(caller)
            self._serve()
            try:
                self._changed.wait_for(lambda: caller.worker is not None or caller.is_dismissed or self._is_closed)
            except BaseException:  # for example Ctrl-C: this caller will not give the worker back
                if caller.worker is not None:
                    self._free_again(caller.worker)
                raise
            finally:
                if caller in self._waiting:
                    self._waiting.remove(caller)
                    self._changed.notify_all()
            return caller.worker

    def give_back(self, worker: W) -> None:
        """Give a worker back, for the next caller."""
        with self._changed:
            self._free_again(worker)

    def take_idle(self, timeout_s: float | None = None) -> W | None:
        """Remove a free worker for good when no caller waits; None if that takes more than `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free and not self._waiting, timeout_s):
                return None
            return self._free.pop()

    def dismiss(self) -> None:
        """Make all waiting calls of :meth:`take` return None. Later callers get a worker."""
        with self._changed:
            for caller in self._waiting:
                caller.is_dismissed = True
            self._waiting.clear()  # now, so that no worker that is given back goes to one of them
            self._changed.notify_all()

    def close(self) -> None:
        """Make all waiting and later calls of :meth:`take` return None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _free_again(self, worker: W) -> None:
        self._tasks.pop(self._workers.index(worker), None)
        self._free.append(worker)
        self._serve()
        self._changed.notify_all()

    def _serve(self) -> None:
        """Hand out free workers as long as callers wait."""
        while self._free and self._waiting and not self._is_closed:
            caller, worker = self._match()
            self._waiting.remove(caller)
            self._free.remove(worker)
            self._tasks[self._workers.index(worker)] = caller.task
            caller.worker = worker
            self._changed.notify_all()

    def _match(self) -> tuple[_Caller[W], W]:
        """Return the next caller and its worker."""
        first = self._waiting[0]
        if first.passed_over >= len(self._workers):
            return first, self._with_task_ready(first.task) or self._free[-1]
        for suitable in (self._with_last_task, self._with_task_ready, self._for_new_task):
            for position, caller in enumerate(self._waiting):
                if (worker := suitable(caller.task)) is not None:
                    for earlier in self._waiting[:position]:
                        earlier.passed_over += 1
                    return caller, worker
        return first, self._free[-1]

    def _with_last_task(self, task: Hashable) -> W | None:
        return next((worker for worker in reversed(self._free) if worker.last == task), None)

    def _with_task_ready(self, task: Hashable) -> W | None:
        return next((worker for worker in reversed(self._free) if task in worker.ready), None)

    def _for_new_task(self, task: Hashable) -> W | None:
        """Return a free worker, unless a busy worker works on the task or has it prepared."""
        is_known = task in self._tasks.values() or any(task in self._workers[index].ready for index in self._tasks)
        return None if is_known else self._free[-1]
