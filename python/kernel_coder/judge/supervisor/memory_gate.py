"""Lets a candidate that found too little GPU memory be judged again alone. Usually candidates share that memory."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kernel_coder.judge import feedback
from kernel_coder.judge.verdict import Outcome, Verdict

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|OUT_OF_MEMORY|no room for a shared buffer|ALLOC(ATION)?_FAILED|STATUS_NOT_INITIALIZED"
)
"""Matches reasons of verdicts that may differ when more GPU memory is free. CUDA libraries report failed allocations
under all these names."""


class MemoryGate:
    """Lets any number of threads enter together, or one thread alone.

    A thread that wants to be alone waits until the others have left. While it waits, no other thread can enter.

    >>> gate = MemoryGate()
    >>> with gate.shared(), gate.shared():
    ...     gate.inside
    2
    >>> with gate.alone():
    ...     gate.inside
    1

    Attributes:
        inside: number of threads inside.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._exclusive = 0  # threads that are inside alone, or wait to enter alone
        self._changed = threading.Condition()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Enter together with others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive)
            self.inside += 1
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Enter without others."""
        with self._changed:
            self._exclusive += 1
            self._changed.wait_for(lambda: not self.inside)
            self.inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._exclusive -= 1
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self.inside -= 1
            self._changed.notify_all()


def tells_of_memory(reason: str) -> bool:
    """Return whether a reason says that too little memory was free."""
    return _OUT_OF_MEMORY.search(reason) is not None


def is_out_of_memory(verdict: Verdict) -> bool:
    """Return whether too little memory was free for the candidate, the task or the Examiner."""
    return verdict.outcome is Outcome.OUT_OF_MEMORY or tells_of_memory(verdict.reason or "")


def may_lack_memory(verdict: Verdict) -> bool:
    """Return whether the verdict might differ with more free memory. A profiler that finds no memory for its records
    reports no error: it just records nothing."""
    return is_out_of_memory(verdict) or feedback.UNRECORDED in (verdict.reason or "")
