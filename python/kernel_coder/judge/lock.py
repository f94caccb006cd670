"""Who uses a GPU: many at a time, or one alone, whose kernels are timed."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

GATE, DEVICE = 0, 1
"""Bytes of the lock's file. Whoever wants the device holds the gate while waiting for it, so that many who share it
cannot keep out for long who needs it alone."""


@contextmanager
def _locked(lock: int | None, kind: int) -> Iterator[None]:
    if lock is None:
        yield
        return
    _lock(lock, GATE, fcntl.F_WRLCK)
    try:
        _lock(lock, DEVICE, kind)
    finally:
        _lock(lock, GATE, fcntl.F_UNLCK)
    try:
        yield
    finally:
        _lock(lock, DEVICE, fcntl.F_UNLCK)


def _lock(fd: int, byte: int, kind: int) -> None:
    """Of the open file, as ``flock`` has it, and gone with it; on one byte of it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))


def shared(lock: int | None) -> AbstractContextManager[None]:
    """Use a GPU with others, but not while somebody is timed."""
    return _locked(lock, fcntl.F_RDLCK)


def alone(lock: int | None) -> AbstractContextManager[None]:
    """Use a GPU alone, to time."""
    return _locked(lock, fcntl.F_WRLCK)
