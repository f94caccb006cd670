"""Who uses a GPU: many at a time, or one alone, whose kernels are timed; and how much of its memory."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

GATE, DEVICE, MEMORY_GATE, MEMORY = 0, 1, 2, 16
"""Bytes of the lock's file. Whoever wants the device holds the gate while waiting for it, so that many who share it
cannot keep out for long who needs it alone. Memory's are the last ones, one for each share."""

SHARES = 16
"""Of a GPU's memory."""

TURN_S = 0.01
"""To share the device for so long at a time keeps nobody waiting; to ask for it more often is to wait more often."""

POLL_S, PATIENCE_S, TELL_S = 0.02, 60.0, 1.0


class Turn:
    """The device, as long as it is held."""

    waited_s = 0.0
    """By this process, for all of its turns."""

    told_s = 0.0
    """Of that, what was told."""

    tell: ClassVar[Callable[[float], None] | None] = None
    """Is called with every second or more that was waited, for whoever is patient meanwhile."""

    settle: ClassVar[Callable[[], None] | None] = None
    """Is called before the device is let go, to wait until it has done all that this process has asked of it. Who is
    timed next would share it with that."""

    def __init__(self, lock: int | None, kind: int) -> None:
        self._lock, self._kind, self._until = lock, kind, 0.0

    def begin(self) -> None:
        if self._lock is not None:
            asked = time.monotonic()
            _lock(self._lock, GATE, fcntl.F_WRLCK)
            try:
                _lock(self._lock, DEVICE, self._kind)
            finally:
                _lock(self._lock, GATE, fcntl.F_UNLCK)
            begun = time.monotonic()
            Turn.waited_s += begun - asked
            if Turn.tell is not None and (untold_s := Turn.waited_s - Turn.told_s) > TELL_S:
                Turn.tell(untold_s)
                Turn.told_s += untold_s
            self._until = time.monotonic() + TURN_S

    def end(self) -> None:
        if self._lock is not None:
            try:
                if Turn.settle is not None:
                    Turn.settle()
            finally:
                _lock(self._lock, DEVICE, fcntl.F_UNLCK)

    def pause(self) -> None:
        """Let those go first who wait, if it has been held for long."""
        if self._lock is not None and time.monotonic() > self._until:
            self.end()
            self.begin()


@contextmanager
def _locked(lock: int | None, kind: int) -> Iterator[Turn]:
    turn = Turn(lock, kind)
    turn.begin()
    try:
        yield turn
    finally:
        turn.end()


def _lock(fd: int, byte: int, kind: int, how: int = fcntl.F_OFD_SETLKW, count: int = 1) -> None:
    """Of the open file, as ``flock`` has it, and gone with it; on some bytes of it."""
    fcntl.fcntl(fd, how, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, count, 0))


def shared(lock: int | None) -> AbstractContextManager[Turn]:
    """Use a GPU with others, but not while somebody is timed. Who does more than one thing pauses in between."""
    return _locked(lock, fcntl.F_RDLCK)


def alone(lock: int | None) -> AbstractContextManager[Turn]:
    """Use a GPU alone, to time."""
    return _locked(lock, fcntl.F_WRLCK)


def await_closed(fd: int, patience_s: float) -> None:
    """Wait until the other end of a pipe is closed; like a wait for the device, it is no part of anybody's life."""
    asked = time.monotonic()
    poller = select.poll()
    poller.register(fd, 0)
    poller.poll(patience_s * 1000)
    Turn.waited_s += time.monotonic() - asked


def reserve(lock: int, shares: int, patience_s: float = PATIENCE_S) -> bool:
    """Wait for so many of the :data:`SHARES` of the GPU's memory, which are kept until the lock's file is closed.

    Shares that are held are given back first, so nobody waits who has what others wait for. False: they were not free
    within `patience_s`, and none is held.
    """
    until = time.monotonic() + patience_s
    _lock(lock, MEMORY, fcntl.F_UNLCK, count=SHARES)
    while not _try(lock, MEMORY_GATE):  # one at a time collects them
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    try:
        held: set[int] = set()
        while True:
            for place in range(SHARES):
                if len(held) < shares and place not in held and _try(lock, MEMORY + place):
                    held.add(place)
            if len(held) >= shares:
                return True
            if time.monotonic() > until:
                _lock(lock, MEMORY, fcntl.F_UNLCK, count=SHARES)
                return False
            time.sleep(POLL_S)
    finally:
        _lock(lock, MEMORY_GATE, fcntl.F_UNLCK)


def _try(fd: int, byte: int) -> bool:
    """Whether the byte is this file's now."""
    try:
        _lock(fd, byte, fcntl.F_WRLCK, fcntl.F_OFD_SETLK)
    except (BlockingIOError, PermissionError):
        return False
    return True
