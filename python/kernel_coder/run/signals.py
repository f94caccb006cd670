"""SIGTERM and SIGINT: the first asks the run to save and leave, a second SIGINT ends it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kernel_coder.run.errors import StopRequested


class StopSignal:
    """Whether a signal has arrived. ``poll`` raises :class:`StopRequested` once one has."""

    def __init__(self) -> None:
        self.name: str | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None and number == signal.SIGINT:
            os._exit(128 + number)
        self.name = signal.Signals(number).name

    def poll(self) -> None:
        if self.name is not None:
            raise StopRequested(self.name)


@contextmanager
def listening() -> Iterator[StopSignal]:
    """A :class:`StopSignal` that is installed for the duration (in the main thread only, as Python requires)."""
    stop = StopSignal()
    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: whoever runs us owns the signals
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
