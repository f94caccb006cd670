"""SIGTERM and SIGINT: the first signal asks the run to save and stop; a second SIGINT ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kernel_coder.run import distributed
from kernel_coder.run.errors import StopRequested


class StopSignal:
    """A signal handler that remembers whether a signal has arrived."""

    def __init__(self) -> None:
        self.name: str | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.name = signal.Signals(number).name

    def poll(self) -> None:
        """Raises :class:`StopRequested` with the signal's name if one has arrived.

        With several ranks, all must call this at the same time; if a signal has arrived at one of them, all stop.
        """
        if distributed.any_of(self.name is not None):
            raise StopRequested(self.name or "a signal to another rank was")

    def poll_alone(self) -> None:
        """Raises :class:`StopRequested` if a signal has arrived at this rank, without asking the other ranks."""
        if self.name is not None:
            raise StopRequested(self.name)


@contextmanager
def listening() -> Iterator[StopSignal]:
    """Installs a :class:`StopSignal` for SIGTERM and SIGINT, and restores the earlier handlers on exit.

    Python allows signal handlers in the main thread only. In any other thread nothing is installed, and the returned
    :class:`StopSignal` never fires.
    """
    stop = StopSignal()
    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
