"""Turns on one GPU: many processes use it at a time, or one alone that times kernels. Also shares of its memory.

All processes of a judge have the same lock file open. They lock single bytes of it with ``fcntl`` (open file
descriptions' locks), so the kernel releases a process's locks when the process ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from kernel_coder.judge.gpu import nvml

GATE, DEVICE, MEMORY_GATE, MEMORY = 0, 1, 2, 16
"""Bytes of the lock file: the gate, the device, the gate of the memory, and the first share of the memory.

Processes that time, or wait to time, hold the gate together. A process that wants to share the device needs the gate
for itself, for a moment. So processes that share the device cannot keep out one that needs it alone, and all processes
that wait to time do so one after another. Otherwise the others would use the device between two of them, and each would
wait anew until they have finished."""

MEMORY_SHARES = 64
"""Number of parts that a GPU's memory is divided into for :meth:`GpuTurns.reserve`: about a gigabyte each."""

FEW_SHARES = MEMORY_SHARES // 4
"""A process that wants at most this many shares takes them as soon as they are free, also while another process
collects more. Otherwise all small tasks would wait for each large one."""

TURN_S = 0.01
"""Time, in seconds, that a process shares the device before :meth:`Turn.pause` lets others go first. Others hardly
notice a wait of 10 ms; with shorter turns more time would be spent on the lock."""

POLL_S = 0.02
"""Interval, in seconds, between two attempts to take memory shares. It shrinks with the time that a process has waited
(:func:`interval_s`)."""

PATIENCE_S = 240.0
"""Time limit, in seconds, of the wait for memory shares. A task that needs the whole GPU takes about 10 s, and each of
a dozen workers may have one."""

MAX_TURN_WAITS_S = 60.0
"""Time limit, in seconds, of all waits of one examination for turns on the GPU. A turn to time a kernel takes about a
second."""

REPORT_WAITS_S = 1.0
"""Seconds of waiting that are reported together, so that a long wait sends few messages."""


def lock_file(gpu: int) -> str:
    """Return the file through which all of this user's processes take turns on a GPU. Create it if it is missing.

    Args:
        gpu: number of the GPU's device node.
    """
    path = os.path.join(tempfile.gettempdir(), f"kernel_coder-{os.geteuid()}-gpu{gpu}.lock")
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o666))
    return path


class SharedGpu:
    """A GPU that this process computes on and a judge times kernels on. The two take turns.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.path = lock_file(nvml.node_number(device.index or 0))

    @contextmanager
    def use(self) -> Iterator[Callable[[], None]]:
        """Compute on the GPU in this block and thread. Gives a function to call often, so that judges can time."""
        lock = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)  # a lock of its own for each thread
        try:
            with GpuTurns(lock, finish_work=self._finish_work).shared() as turn:
                yield turn.pause
        finally:
            os.close(lock)

    def _finish_work(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()


class Turn:
    """One turn on the device, from :meth:`begin` to :meth:`end`."""

    def __init__(self, turns: GpuTurns, kind: int) -> None:
        self._turns, self._lock, self._kind, self._until = turns, turns.lock, kind, 0.0
        self._is_alone = kind == fcntl.F_WRLCK

    def begin(self) -> None:
        """Wait for the device."""
        if self._lock is not None:
            asked = time.monotonic()
            _lock(self._lock, GATE, fcntl.F_RDLCK if self._is_alone else fcntl.F_WRLCK)
            try:
                _lock(self._lock, DEVICE, self._kind)
            except BaseException:
                _lock(self._lock, GATE, fcntl.F_UNLCK)
                raise
            if not self._is_alone:
                _lock(self._lock, GATE, fcntl.F_UNLCK)
            self._turns.add_wait(time.monotonic() - asked)
            self._until = time.monotonic() + TURN_S

    def end(self) -> None:
        """Release the device, once it has finished what this process asked of it."""
        if self._lock is not None:
            try:
                self._turns.finish_work()
            finally:
                _lock(self._lock, DEVICE, fcntl.F_UNLCK)
                _lock(self._lock, GATE, fcntl.F_UNLCK)

    def pause(self) -> None:
        """Let waiting processes go first, if this turn has lasted more than :data:`TURN_S`."""
        if self._lock is not None and time.monotonic() > self._until:
            self.end()
            self.begin()


class GpuTurns:
    """This process's turns on a GPU, and the time that it has waited for them. Without a lock nothing waits.

    >>> turns = GpuTurns()
    >>> with turns.shared() as turn, turns.alone():
    ...     turn.pause()
    >>> turns.waited_s
    0.0
    """

    def __init__(
        self,
        lock: int | None = None,
        on_wait: Callable[[float], None] | None = None,
        finish_work: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            lock: descriptor of the lock file. The Examiner gets one with each request and sets it here.
            on_wait: called with the seconds waited, each time that more than :data:`REPORT_WAITS_S` have accumulated.
                The Supervisor extends its own time limit by them.
            finish_work: called before the device is released. It waits until the device has done all of this process's
                work; otherwise the next process would be timed beside that work.
        """
        self.lock = lock
        self.waited_s = 0.0
        """Seconds that this process has waited for the device. They do not count against a candidate's time limit."""

        self.busy_until = 0.0
        """``time.monotonic()`` until which another program counts as using the GPU. Until then nothing waits for it."""

        self._on_wait, self._finish_work, self._told_s = on_wait, finish_work, 0.0
        self._places: set[int] = set()  # places of the memory shares that this process holds by its lock

    def shared(self) -> AbstractContextManager[Turn]:
        """Use the device beside others, but not while another process times. Call ``pause`` between two steps."""
        return self._held(fcntl.F_RDLCK)

    def alone(self) -> AbstractContextManager[Turn]:
        """Use the device alone, to time kernels."""
        return self._held(fcntl.F_WRLCK)

    @contextmanager
    def _held(self, kind: int) -> Iterator[Turn]:
        turn = Turn(self, kind)
        turn.begin()
        try:
            yield turn
        finally:
            turn.end()

    @contextmanager
    def using(self, lock: int | None) -> Iterator[None]:
        """Take turns by this lock in the block."""
        before, self.lock, self._places = self.lock, lock, set()
        try:
            yield
        finally:
            self.lock = before

    def finish_work(self) -> None:
        """Wait until the device has done this process's work."""
        if self._finish_work is not None:
            self._finish_work()

    def add_wait(self, seconds: float) -> None:
        """Count seconds of waiting, and report them if enough have accumulated."""
        self.waited_s += seconds
        if self._on_wait is not None and (untold_s := self.waited_s - self._told_s) > REPORT_WAITS_S:
            self._on_wait(untold_s)
            self._told_s += untold_s

    def sleep(self, seconds: float) -> None:
        """Sleep. This counts as waiting for the device."""
        began = time.monotonic()
        time.sleep(seconds)
        self.waited_s += time.monotonic() - began

    def await_closed(self, fd: int, patience_s: float) -> None:
        """Wait until the other end of a pipe is closed, at most `patience_s`. This counts as waiting for the device."""
        began = time.monotonic()
        poller = select.poll()
        poller.register(fd, 0)
        poller.poll(patience_s * 1000)
        self.waited_s += time.monotonic() - began

    def reserve(self, shares: int, patience_s: float = PATIENCE_S) -> bool:
        """Wait for so many of the :data:`MEMORY_SHARES` of the GPU's memory. They stay reserved until the lock file is
        closed.

        If this process holds as many already, it gives the others back and does not wait. If it needs more, it gives
        back all first. So no process waits while it holds shares that others wait for.

        Returns:
            False if the shares were not free within `patience_s`; then none is reserved.
        """
        self._keep(shares)
        if len(self._places) >= shares:
            return True
        self._keep(0)
        began = time.monotonic()
        try:
            collect = self._take_few if shares <= FEW_SHARES else self._collect
            return collect(shares, began, began + patience_s)
        finally:
            waited_s = time.monotonic() - began  # the Supervisor allows for this wait when it asks for the task
            self.waited_s += waited_s
            self._told_s += waited_s

    def _take_few(self, shares: int, began: float, until: float) -> bool:
        """Take shares once enough are free at the same time. Hold none while they are not."""
        while not self._take_free(shares):
            self._keep(0)
            if time.monotonic() > until:
                return False
            time.sleep(interval_s(time.monotonic() - began))
        return True

    def _collect(self, shares: int, began: float, until: float) -> bool:
        """Take shares one by one as they become free, and hold them meanwhile. One process at a time does this."""
        assert self.lock is not None
        while not _try(self.lock, MEMORY_GATE):
            if time.monotonic() > until:
                return False
            time.sleep(interval_s(time.monotonic() - began))
        try:
            while not self._take_free(shares):
                if time.monotonic() > until:
                    self._keep(0)
                    return False
                time.sleep(interval_s(time.monotonic() - began))
            return True
        finally:
            _lock(self.lock, MEMORY_GATE, fcntl.F_UNLCK)

    def _take_free(self, shares: int) -> bool:
        """Take free shares until this process holds so many. Return whether it does."""
        assert self.lock is not None
        for place in range(MEMORY_SHARES):
            if len(self._places) >= shares:
                break
            if place not in self._places and _try(self.lock, MEMORY + place):
                self._places.add(place)
        return len(self._places) >= shares

    def _keep(self, shares: int) -> None:
        """Give back all shares but this many."""
        assert self.lock is not None
        for place in sorted(self._places)[shares:]:
            _lock(self.lock, MEMORY + place, fcntl.F_UNLCK)
            self._places.remove(place)


def interval_s(waited_s: float) -> float:
    """Return the seconds until the next attempt of a process that has waited so long.

    The process that asks most often is the likeliest to be the next. With equal intervals one of six processes waited
    for 263 s, and the others for at most 60 s.

    >>> [interval_s(waited_s) for waited_s in (0.0, 1.0, 9.0, 1000.0)]
    [0.02, 0.01, 0.002, 0.0005]
    """
    return max(POLL_S / (1.0 + waited_s), POLL_S / 40)


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done all of this process's work; on a CPU, do nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _lock(fd: int, byte: int, kind: int, how: int = fcntl.F_OFD_SETLKW, count: int = 1) -> None:
    """Lock or unlock `count` bytes of the file from `byte` on, for this open file description."""
    fcntl.fcntl(fd, how, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, count, 0))


def _try(fd: int, byte: int) -> bool:
    """Lock one byte without waiting. Return whether that worked."""
    try:
        _lock(fd, byte, fcntl.F_WRLCK, fcntl.F_OFD_SETLK)
    except (BlockingIOError, PermissionError):
        return False
    return True
