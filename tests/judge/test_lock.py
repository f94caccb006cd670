"""The lock of a GPU: who times, and who holds how much of its memory."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_coder.judge.examiner.examination import Session
from kernel_coder.judge.examiner.prepared_task import Problem
from kernel_coder.judge.gpu import turns as lock
from kernel_coder.judge.gpu.turns import SHARES, Turn, alone, await_closed, reserve, shared
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


def test_memory_goes_to_as_many_as_fit(files: list[int]) -> None:
    one, two, three = files
    assert reserve(one, SHARES // 2, 0.0)
    assert reserve(two, SHARES // 2, 0.0)
    assert not reserve(three, 1, 0.1)


def test_memory_is_free_again_when_the_file_is_closed(files: list[int]) -> None:
    assert reserve(files[0], SHARES, 0.0)
    waiting = threading.Timer(0.2, lambda: os.close(files.pop(0)))
    waiting.start()
    started = time.monotonic()
    assert reserve(files[1], 3, 5.0)
    assert time.monotonic() - started > 0.1
    waiting.join()


def test_who_waits_for_more_holds_nothing_meanwhile(files: list[int]) -> None:
    """Two that hold a part and want all of it do not wait for each other."""
    one, two, _ = files
    assert reserve(one, SHARES - 2, 0.0)
    assert reserve(two, 2, 0.0)
    found: list[bool] = []

    def take(place: int) -> None:
        found.append(reserve(files[place], SHARES, 5.0))
        os.close(files[place])
        files[place] = -1

    waiting = [threading.Thread(target=take, args=(place,)) for place in (0, 1)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert found == [True, True]


def test_who_comes_to_nothing_leaves_what_was_collected_to_others(files: list[int]) -> None:
    one, two, three = files
    assert reserve(one, 1, 0.0)
    assert not reserve(two, SHARES, 0.1)
    assert reserve(three, SHARES - 1, 0.0)


def test_memory_that_is_held_keeps_nobody_from_timing(files: list[int]) -> None:
    one, two, _ = files
    assert reserve(one, SHARES, 0.0)
    with alone(two):
        pass
    with shared(one), shared(two):
        pass


@pytest.mark.parametrize("before", [0, 5 << 20])
@pytest.mark.parametrize(("kib", "left"), [(400, SHARES), (3 << 10, 11), (20 << 10, 0)])
def test_a_task_takes_the_shares_that_it_needs_and_gives_back_what_it_was_only_supposed_to(
    files: list[int], monkeypatch: pytest.MonkeyPatch, before: int, kib: int, left: int
) -> None:
    """Of a GPU of 10 MiB."""
    problem = Problem.__new__(Problem)
    problem.device, problem.lock, problem.is_large = SimpleNamespace(type="cuda"), files[0], False  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=10 << 20))
    problem._reserve(before)
    assert problem.is_large is (before > 0)
    problem._reserve(kib << 10)
    assert problem.is_large is (left < SHARES)
    assert reserve(files[1], left, 0.0)
    assert left == SHARES or not reserve(files[1], left + 1, 0.05)


def test_who_shares_the_device_for_long_lets_others_be_timed_in_between(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = files
    seen: list[str] = []

    def time_something() -> None:
        with alone(two):
            seen.append("timed")

    def is_waited() -> bool:
        if not lock._try(three, lock.GATE):
            return True
        lock._lock(three, lock.GATE, fcntl.F_UNLCK)
        return False

    monkeypatch.setattr(lock, "TURN_S", 3600.0)
    waited_s = Turn.waited_s
    waiting = threading.Thread(target=time_something)
    with shared(one) as turn:
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
    assert Turn.waited_s > waited_s


def test_what_was_asked_of_the_device_is_done_before_it_is_let_go(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would be timed beside it."""
    one, two, _ = files
    free: list[bool] = []

    def settle() -> None:
        free.append(lock._try(two, lock.DEVICE))

    monkeypatch.setattr(Turn, "settle", settle)
    with shared(one) as turn:
        turn.pause()
        assert free == []
        turn._until = 0.0
        turn.pause()
        assert free == [False]
    assert free == [False, False]
    with alone(one):
        pass
    assert free == [False] * 3

    def fail() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(Turn, "settle", fail)
    with pytest.raises(RuntimeError, match="illegal"), shared(one):
        pass
    assert lock._try(two, lock.DEVICE)


@pytest.mark.parametrize(
    ("is_first", "in_time", "expected"),
    [
        (False, True, ["asked, held", "compared, held"]),
        (False, False, ["asked, held", "answered, free", "compared, held"]),
        (True, False, ["asked, free", "answered, free", "compared, held"]),
    ],
)
def test_outputs_are_compared_while_nobody_is_timed(
    files: list[int], is_first: bool, in_time: bool, expected: list[str]
) -> None:
    """And calls are made then, but for a first one, which compiles, and one that takes too long."""
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

    class Fake(Session):
        def sample(self, family: str, second: bool = False) -> Any:
            return SimpleNamespace(tolerances=[], family=family)

        def _prepare(self, *_: Any) -> torch.Tensor:
            return torch.zeros(1)

        def _ask_for_call(self, *_: Any) -> None:
            note("asked")

        def _compared(self, *_: Any) -> list[Any]:
            note("compared")
            return []

        def _record(self, *_: Any) -> None:
            pass

        refuse_values = _refuse_changed_inputs = _record

    variant = SimpleNamespace(slots=1, sizes=None)
    session = Fake.__new__(Fake)
    session.lock, session.nulls, session.called, session.device = (
        one,
        None,
        set() if is_first else {0},
        torch.device("cpu"),
    )
    session.longest_s = 0.0
    session.problem = SimpleNamespace(variants=[variant])  # type: ignore[assignment]
    session.link = SimpleNamespace(wait=lambda most_s: in_time, answer=answer)  # type: ignore[assignment]
    assert session._check("own", variant)  # type: ignore[arg-type]
    assert seen == expected
    assert lock._try(two, lock.DEVICE)


def test_nobody_waits_without_a_lock() -> None:
    waited_s = Turn.waited_s
    with shared(None) as turn, alone(None):
        turn.pause()
    assert Turn.waited_s == waited_s


def test_the_other_end_of_a_pipe_is_waited_for_until_it_is_closed_and_not_for_ever(
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
    waited_s = Turn.waited_s
    await_closed(ours, 0.1)
    asked, ended = readings
    assert ended - asked >= 0.1
    assert Turn.waited_s - waited_s == pytest.approx(ended - asked)
    closing = threading.Timer(0.1, close, [theirs])
    closing.start()
    await_closed(ours, 60.0)
    asked_again, ended_again = readings[2:]
    assert closed_at[0] <= ended_again < asked_again + 30
    assert Turn.waited_s - waited_s == pytest.approx(ended - asked + ended_again - asked_again)
    closing.join()
    os.close(ours)
