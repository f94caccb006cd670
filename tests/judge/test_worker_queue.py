"""Which candidate goes to which worker."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_coder.judge.supervisor.worker_queue import WorkerQueue

pytestmark = pytest.mark.cpu


def workers(*ready: str) -> list[Any]:
    """Return workers with these tasks ready, one letter per task. Workers compare by identity, as slots do."""
    return [SimpleNamespace(ready=set(one), last=one[-1:], name=place) for place, one in enumerate(ready)]


class Line:
    """Callers, one thread each, that begin to wait in a known order."""

    def __init__(self, queue: WorkerQueue[Any]) -> None:
        self.queue = queue
        self.served: list[tuple[str, Any]] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def wait_for(self, *tasks: str) -> None:
        for task in tasks:
            before = len(self.queue._waiting)
            self._threads.append(threading.Thread(target=self._take, args=(task,)))
            self._threads[-1].start()
            while len(self.queue._waiting) == before:
                time.sleep(0.001)

    def _take(self, task: str) -> None:
        worker = self.queue.take(task)
        with self._changed:
            self.served.append((task, worker))
            self._changed.notify_all()

    def next_after(self, worker: Any) -> tuple[str, Any]:
        """Give a worker back; returns the task and the worker of the caller that gets it."""
        with self._changed:
            count = len(self.served)
            self.queue.give_back(worker)
            assert self._changed.wait_for(lambda: len(self.served) > count, 5.0)
            return self.served[count]

    def end(self) -> None:
        self.queue.close()
        for thread in self._threads:
            thread.join(5.0)
            assert not thread.is_alive()


def test_only_caller_gets_the_worker_with_its_task_or_else_the_last_free_one() -> None:
    one, two, three = workers("a", "b", "")
    queue = WorkerQueue([one, two, three])
    assert queue.take("a") is one
    assert queue.take("c") is three
    queue.give_back(one)
    assert queue.take("c") is one
    assert queue.take("d") is two


def test_free_worker_goes_to_the_first_caller_whose_task_it_has_ready() -> None:
    one, two = workers("a", "b")
    line = Line(WorkerQueue([one, two]))
    line.queue.take("a"), line.queue.take("b")
    line.wait_for("c", "a", "b", "b")
    assert line.next_after(two) == ("b", two)
    assert line.next_after(one) == ("a", one)
    line.end()


def test_last_task_of_a_worker_comes_before_its_other_ready_tasks() -> None:
    one, two = workers("ab", "dc")
    line = Line(WorkerQueue([one, two]))
    line.queue.take("b"), line.queue.take("c")
    line.wait_for("a", "b", "b", "a", "d")
    assert [line.next_after(one) for _ in range(2)] == [("b", one), ("b", one)]
    assert line.next_after(two) == ("a", two)  # this caller was passed over twice, as often as there are workers
    assert line.next_after(one) == ("a", one)
    line.end()


def test_worker_without_a_ready_task_goes_to_a_caller_whose_task_no_busy_worker_has() -> None:
    one, two = workers("a", "")
    line = Line(WorkerQueue([one, two]))
    line.queue.take("a"), line.queue.take("d")
    line.wait_for("a", "c", "a")
    assert line.next_after(two) == ("c", two)  # the first caller can wait for the other worker
    assert line.next_after(two) == ("a", two)  # only callers with this task wait, and no worker may be idle then
    line.end()


def test_no_caller_is_passed_over_for_ever() -> None:
    one, two = workers("a", "b")
    line = Line(WorkerQueue([one, two]))
    line.queue.take("a"), line.queue.take("b")
    line.wait_for("old", *"aaaa")
    assert [line.next_after(one)[0] for _ in range(4)] == ["a", "a", "old", "a"]
    line.end()


def test_a_closed_queue_gives_no_worker_to_any_caller() -> None:
    (one,) = workers("")
    line = Line(WorkerQueue([one]))
    assert line.queue.take("a") is one
    line.wait_for("a", "b")
    assert line.queue.take_idle(0.01) is None  # the worker is busy
    line.end()
    assert [worker for _, worker in line.served] == [None, None]
    line.queue.give_back(one)
    assert line.queue.take("a") is None
    assert line.queue.take_idle() is one


def test_dismissed_callers_get_no_worker_and_later_callers_do() -> None:
    (one,) = workers("")
    line = Line(WorkerQueue([one]))
    assert line.queue.take("a") is one
    line.wait_for("a", "b")
    line.queue.dismiss()
    line.queue.give_back(one)
    assert line.queue.take_idle(0.0) is one  # no dismissed caller got the worker; their threads may still sleep
    for thread in line._threads:
        thread.join(5.0)
    assert sorted(line.served) == [("a", None), ("b", None)]
    line.wait_for("c")
    assert line.next_after(one) == ("c", one)
    line.end()


@pytest.mark.parametrize("is_served", [False, True])
def test_caller_that_is_interrupted_while_waiting_leaves_the_worker_free(
    monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    """Ctrl-C comes before the caller gets a worker, or just after it."""
    (one,) = workers("")
    queue = WorkerQueue([one])
    if not is_served:
        assert queue.take("a") is one

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(queue._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.take("b")
    if not is_served:
        queue.give_back(one)
    assert queue.take_idle(0.0) is one


@pytest.mark.parametrize("seed", range(5))
def test_every_caller_is_served_once_and_no_worker_serves_two_at_a_time(seed: int) -> None:
    rng = random.Random(seed)
    team = workers("", "", "")
    queue, busy, served = WorkerQueue(team), set(), []
    tasks = [rng.choice("abcde") for _ in range(60)]

    def work(task: str) -> None:
        worker = queue.take(task)
        assert worker is not None
        assert worker.name not in busy
        busy.add(worker.name)
        time.sleep(0.001)
        worker.ready, worker.last = {task, *sorted(worker.ready)[:1]}, task
        busy.remove(worker.name)
        served.append(task)
        queue.give_back(worker)

    threads = [threading.Thread(target=work, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert sorted(served) == sorted(tasks)
    assert all(queue.take_idle(0.0) is not None for _ in team)
