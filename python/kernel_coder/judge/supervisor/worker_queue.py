"""Which candidate is judged next, and where: by a worker that has its task ready, if there is one."""

from __future__ import annotations

import threading
from collections.abc import Container, Hashable, Sequence
from typing import Generic, Protocol, TypeVar


class Worker(Protocol):
    """Judges one candidate at a time."""

    @property
    def ready(self) -> Container[Hashable]:
        """Tasks that it need not prepare."""

    @property
    def last(self) -> Hashable:
        """The task of the last candidate, which takes least to go on with."""


W = TypeVar("W", bound=Worker)


class _Waiting(Generic[W]):
    def __init__(self, task: Hashable) -> None:
        self.task = task
        self.passed = 0
        self.worker: W | None = None
        self.is_sent_away = False


class Places(Generic[W]):
    """Workers and those who wait for one.

    A worker that is free goes to the first who waits with its last task, or else with one that it has ready; else to
    the first whose task nobody has ready or at work, since the others are better off elsewhere; else to the first.
    Whoever was passed over as often as there are workers is the next.

    >>> from types import SimpleNamespace
    >>> one, two = (SimpleNamespace(ready={task}, last=task) for task in ("a", "b"))
    >>> places = Places([one, two])
    >>> places.take("a") is one, places.take("c") is two
    (True, True)
    """

    def __init__(self, workers: Sequence[W]) -> None:
        self._workers = tuple(workers)
        self._free = list(workers)  # the last one given back is the last, and the first to be taken
        self._at_work: dict[int, Hashable] = {}  # by the worker's place
        self._waiting: list[_Waiting[W]] = []
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def at_work(self) -> int:
        """Workers that are somebody's."""
        with self._changed:
            return len(self._at_work)

    def take(self, task: Hashable) -> W | None:
        """Wait for a worker, which is the caller's until it is given back; None if there is to be no more work."""
        me: _Waiting[W] = _Waiting(task)
        with self._changed:
            self._waiting.append(me)
            self._serve()
            try:
                self._changed.wait_for(lambda: me.worker is not None or me.is_sent_away or self._is_closed)
            except BaseException:  # Ctrl-C: whoever closes waits for nobody who has left
                if me.worker is not None:
                    self._free_again(me.worker)
                raise
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
                    self._changed.notify_all()
            return me.worker

    def give_back(self, worker: W) -> None:
        with self._changed:
            self._free_again(worker)

    def take_idle(self, timeout_s: float | None = None) -> W | None:
        """A worker for good, when nobody waits for one; None if that takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free and not self._waiting, timeout_s):
                return None
            return self._free.pop()

    def send_away(self) -> None:
        """Who waits gets none; who comes later may."""
        with self._changed:
            for one in self._waiting:
                one.is_sent_away = True
            self._waiting.clear()  # at once, lest a worker that is given back goes to one of them
            self._changed.notify_all()

    def close(self) -> None:
        """Who waits, or comes later, gets none."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _free_again(self, worker: W) -> None:
        self._at_work.pop(self._workers.index(worker), None)
        self._free.append(worker)
        self._serve()
        self._changed.notify_all()

    def _serve(self) -> None:
        while self._free and self._waiting and not self._is_closed:
            chosen, worker = self._match()
            self._waiting.remove(chosen)
            self._free.remove(worker)
            self._at_work[self._workers.index(worker)] = chosen.task
            chosen.worker = worker
            self._changed.notify_all()

    def _match(self) -> tuple[_Waiting[W], W]:
        first = self._waiting[0]
        if first.passed >= len(self._workers):
            return first, self._with(first.task) or self._free[-1]
        for suitable in (self._last_at, self._with, self._new_to_all):
            for position, one in enumerate(self._waiting):
                if (worker := suitable(one.task)) is not None:
                    return self._passing(position), worker
        return first, self._free[-1]

    def _last_at(self, task: Hashable) -> W | None:
        return next((worker for worker in reversed(self._free) if worker.last == task), None)

    def _with(self, task: Hashable) -> W | None:
        return next((worker for worker in reversed(self._free) if task in worker.ready), None)

    def _new_to_all(self, task: Hashable) -> W | None:
        """Any worker, if none that will be free again has the task."""
        is_known = task in self._at_work.values() or any(task in self._workers[place].ready for place in self._at_work)
        return None if is_known else self._free[-1]

    def _passing(self, position: int) -> _Waiting[W]:
        for one in self._waiting[:position]:
            one.passed += 1
        return self._waiting[position]
