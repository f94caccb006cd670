"""Turns on a GPU by a lock file: which process times, and how much of the memory each one holds."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import Seeds
from kernel_coder.judge.gpu import turns as lock
from kernel_coder.judge.gpu.turns import MEMORY_SHARES, GpuTurns
from kernel_coder.judge.wire.channel import Frame
from kernel_coder.judge.wire.messages import Say, Status

pytestmark = pytest.mark.cpu


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    """The same lock, as three processes would open it."""
    opened = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    yield opened
    for fd in opened:
        if fd >= 0:
            os.close(fd)


def test_memory_goes_to_as_many_processes_as_fit(files: list[int]) -> None:
    one, two, three = files
    assert GpuTurns(one).reserve(MEMORY_SHARES // 2, 0.0)
    assert GpuTurns(two).reserve(MEMORY_SHARES // 2, 0.0)
    assert not GpuTurns(three).reserve(1, 0.1)


def test_memory_is_free_again_when_the_file_is_closed(files: list[int]) -> None:
    assert GpuTurns(files[0]).reserve(MEMORY_SHARES, 0.0)
    waiting = threading.Timer(0.2, lambda: os.close(files.pop(0)))
    waiting.start()
    started = time.monotonic()
    assert GpuTurns(files[1]).reserve(3, 5.0)
    assert time.monotonic() - started > 0.1
    waiting.join()


def test_two_processes_that_hold_a_part_and_want_all_memory_do_not_deadlock(files: list[int]) -> None:
    """A process that needs more memory first gives back the memory that it holds."""
    turns = [GpuTurns(fd) for fd in files]
    assert turns[0].reserve(MEMORY_SHARES - 2, 0.0)
    assert turns[1].reserve(2, 0.0)
    found: list[bool] = []

    def take(place: int) -> None:
        found.append(turns[place].reserve(MEMORY_SHARES, 5.0))
        os.close(files[place])
        files[place] = -1

    waiting = [threading.Thread(target=take, args=(place,)) for place in (0, 1)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert found == [True, True]


def test_process_that_gives_up_waiting_releases_the_memory_that_it_collected(files: list[int]) -> None:
    one, two, three = files
    assert GpuTurns(one).reserve(1, 0.0)
    assert not GpuTurns(two).reserve(MEMORY_SHARES, 0.1)
    assert GpuTurns(three).reserve(MEMORY_SHARES - 1, 0.0)


def test_process_that_needs_less_memory_than_it_holds_returns_the_rest_without_waiting(files: list[int]) -> None:
    one, two, three = (GpuTurns(fd) for fd in files)
    assert one.reserve(MEMORY_SHARES - 1, 0.0)
    assert two.reserve(1, 0.0)
    assert one.reserve(4, 0.0)
    assert one.reserve(4, 0.0)
    assert three.reserve(MEMORY_SHARES - 5, 0.0)
    assert one.waited_s < 0.01


def test_a_small_task_does_not_wait_for_a_process_that_collects_all_memory(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "POLL_S", 0.3)
    one, two, three = (GpuTurns(fd) for fd in files)
    assert one.reserve(MEMORY_SHARES - 8, 0.0)
    collecting = threading.Thread(target=lambda: two.reserve(MEMORY_SHARES, 5.0))
    collecting.start()
    time.sleep(0.1)  # the collecting process holds the other 8 shares and waits
    assert one.reserve(MEMORY_SHARES - 16, 0.0)
    assert three.reserve(4, 0.0)
    assert one.reserve(0)
    assert three.reserve(0)
    collecting.join(5.0)
    assert not collecting.is_alive()
    assert 0.1 < two.waited_s < 5.0


def test_the_wait_for_memory_is_counted_but_not_reported_to_the_supervisor(files: list[int]) -> None:
    told: list[float] = []
    waits = GpuTurns(files[0], told.append)
    assert GpuTurns(files[1]).reserve(MEMORY_SHARES, 0.0)
    assert not waits.reserve(1, 0.1)
    waits.add_wait(lock.REPORT_WAITS_S + 0.1)
    assert waits.waited_s > lock.REPORT_WAITS_S + 0.2 > 1.1 > told[0] - 0.05


def test_reserved_memory_keeps_no_other_process_from_timing(files: list[int]) -> None:
    one, two, _ = files
    assert GpuTurns(one).reserve(MEMORY_SHARES, 0.0)
    with GpuTurns(two).alone():
        pass
    with GpuTurns(one).shared(), GpuTurns(two).shared():
        pass


@pytest.mark.parametrize("before", [0, 5 << 20])
@pytest.mark.parametrize(("kib", "left"), [(20, MEMORY_SHARES), (400, MEMORY_SHARES - 5), (3 << 10, 25), (20 << 10, 0)])
def test_task_reserves_the_shares_that_it_needs_and_returns_the_rest_of_its_estimate(
    files: list[int], monkeypatch: pytest.MonkeyPatch, before: int, kib: int, left: int
) -> None:
    """The GPU has 10 MiB of memory. 5 MiB of it are divided into shares."""
    task = PreparedTask.__new__(PreparedTask)
    task.device, task.turns, task.is_large = SimpleNamespace(type="cuda"), GpuTurns(files[0]), False  # type: ignore[assignment]
    task.config = SimpleNamespace(parallel=lambda: 8)  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=10 << 20))
    task._reserve(before)
    assert task.is_large is (before > 0)
    task._reserve(kib << 10)
    assert task.is_large is (kib > 10 * 1024 / 24)
    assert task.shares == MEMORY_SHARES - left
    assert GpuTurns(files[1]).reserve(left, 0.0)
    assert left == MEMORY_SHARES or not GpuTurns(files[1]).reserve(left + 1, 0.05)


def test_a_process_that_shares_the_device_for_long_lets_others_time_in_between(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = files
    turns = GpuTurns(one)
    seen: list[str] = []

    def time_something() -> None:
        with GpuTurns(two).alone():
            seen.append("timed")

    def is_waited() -> bool:
        if not lock._try(three, lock.GATE):
            return True
        lock._lock(three, lock.GATE, fcntl.F_UNLCK)
        return False

    monkeypatch.setattr(lock, "TURN_S", 3600.0)
    waiting = threading.Thread(target=time_something)
    with turns.shared() as turn:
        waited_s = turns.waited_s
        waiting.start()
        while not is_waited():
            time.sleep(0.01)
        turn.pause()
        seen.append("shared")
        turn._until = 0.0
        turn.pause()
        seen.append("shared again")
    waiting.join()
    assert seen == ["shared", "timed", "shared again"]
    assert turns.waited_s > waited_s


def test_process_that_waits_to_time_goes_before_one_that_waits_to_share_the_device(files: list[int]) -> None:
    seen: list[str] = []

    def use(fd: int, kind: str) -> None:
        with getattr(GpuTurns(fd), kind)():
            seen.append(kind)

    with GpuTurns(files[0]).alone():
        waiting = [threading.Thread(target=use, args=pair) for pair in zip(files[1:], ("shared", "alone"), strict=True)]
        for thread in waiting:
            thread.start()
            time.sleep(0.1)
        seen.append("alone")
    for thread in waiting:
        thread.join()
    assert seen == ["alone", "alone", "shared"]


def test_device_finishes_the_work_of_a_process_before_it_is_released(files: list[int]) -> None:
    """Otherwise another process would time its kernels beside that work."""
    one, two, _ = files
    free: list[bool] = []

    def finish_work() -> None:
        free.append(lock._try(two, lock.DEVICE))

    turns = GpuTurns(one, finish_work=finish_work)
    with turns.shared() as turn:
        turn.pause()
        assert free == []
        turn._until = 0.0
        turn.pause()
        assert free == [False]
    assert free == [False, False]
    with turns.alone():
        pass
    assert free == [False] * 3

    def fail() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"), GpuTurns(one, finish_work=fail).shared():
        pass
    assert lock._try(two, lock.DEVICE)


def test_waits_are_reported_once_their_sum_exceeds_a_limit() -> None:
    told: list[float] = []
    turns = GpuTurns(on_wait=told.append)
    for seconds in (0.5, 0.5, 0.25, 0.5, 2.0, 0.5):
        turns.add_wait(seconds)
    assert told == [1.25, 2.5]
    assert turns.waited_s == 4.25


def test_turns_use_another_lock_for_the_duration_of_a_request(files: list[int]) -> None:
    one, two, _ = files
    turns = GpuTurns()
    with turns.using(one), turns.alone():
        assert not lock._try(two, lock.DEVICE)
    assert turns.lock is None
    assert lock._try(two, lock.DEVICE)


@pytest.mark.parametrize(
    ("is_first", "in_time", "expected"),
    [
        (False, True, ["asked, held", "compared, held"]),
        (False, False, ["asked, held", "answered, free", "compared, held"]),
        (True, False, ["asked, free", "answered, free", "compared, held"]),
    ],
)
def test_outputs_are_compared_while_no_process_times(
    files: list[int], is_first: bool, in_time: bool, expected: list[str]
) -> None:
    """Calls also hold the device, except for a first call, which compiles, and a call that takes too long."""
    one, two, _ = files
    seen: list[str] = []

    def note(what: str) -> None:
        is_free = lock._try(two, lock.DEVICE)
        if is_free:
            lock._lock(two, lock.DEVICE, fcntl.F_UNLCK)
        seen.append(f"{what}, {'free' if is_free else 'held'}")

    def answer(say: Say, most_s: float) -> Frame:
        if not in_time:
            note("answered")
        return Frame(int(say), int(Status.OK), (0,) * 7)

    class Fake(Checker):
        def write(self, *_: Any) -> torch.Tensor:
            return torch.zeros(1)

        def ask_for_call(self, *_: Any) -> None:
            note("asked")

        def compare(self, *_: Any) -> list[Any]:
            note("compared")
            return []

        def _record(self, *_: Any) -> None:
            pass

        refuse_values = _refuse_changed_inputs = _record

    variant = SimpleNamespace(slots=1, sizes=None)
    task = SimpleNamespace(
        variants=[variant],
        device=torch.device("cpu"),
        is_large=False,
        null_candidates=lambda: None,
        sample=lambda family, variant: SimpleNamespace(tolerances=[], family=family, magnitudes=[]),
    )
    link = SimpleNamespace(wait=lambda most_s: in_time, answer=answer)
    checker = Fake(task, link, "", GpuTurns(one))  # type: ignore[arg-type]
    checker._called = set() if is_first else {0}
    assert checker.check("own", variant)  # type: ignore[arg-type]
    assert seen == expected
    assert lock._try(two, lock.DEVICE)


def test_nothing_waits_without_a_lock() -> None:
    turns = GpuTurns()
    with turns.shared() as turn, turns.alone():
        turn.pause()
    assert turns.waited_s == 0.0


def test_await_closed_returns_when_the_pipe_is_closed_or_the_time_limit_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings: list[float] = []
    closed_at: list[float] = []

    def monotonic() -> float:
        readings.append(time.monotonic())
        return readings[-1]

    def close(fd: int) -> None:
        closed_at.append(time.monotonic())
        os.close(fd)

    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=monotonic))
    ours, theirs = os.pipe()
    turns = GpuTurns()
    turns.await_closed(ours, 0.1)
    asked, ended = readings
    assert ended - asked >= 0.1
    assert turns.waited_s == pytest.approx(ended - asked)
    closing = threading.Timer(0.1, close, [theirs])
    closing.start()
    turns.await_closed(ours, 60.0)
    asked_again, ended_again = readings[2:]
    assert closed_at[0] <= ended_again < asked_again + 30
    assert turns.waited_s == pytest.approx(ended - asked + ended_again - asked_again)
    closing.join()
    os.close(ours)


class WatchedTurns(GpuTurns):
    """Turns that record whether this process shares the device now."""

    is_held = False

    @contextmanager
    def shared(self) -> Iterator[lock.Turn]:
        self.is_held = True
        try:
            with super().shared() as turn:
                yield turn
        finally:
            self.is_held = False


@pytest.mark.parametrize(("comment", "is_held"), [("", False), ("# its table is made by CUDA", True)])
def test_a_reference_is_constructed_without_a_turn_unless_it_may_use_the_gpu(
    comment: str, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = WatchedTurns(), list[bool]()
    monkeypatch.setitem(sys.modules, "probe", SimpleNamespace(note=lambda: seen.append(turns.is_held)))
    task = {"reference": f"{comment}\n{PROBED}", "entry_point": "Model", "precision": "fp32"}
    PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(3), turns)
    assert seen == [is_held] * 3


PROBED = """
import probe
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))
        probe.note()

    def forward(self, x):
        return x * self.weight


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""
