"""Whether somebody else uses the GPU: how much longer a piece of work takes than it would alone.

Processes that use a GPU have it in turn, for a slice of time each, whose length nobody documents. So what is asked of
it has to wait for the slices of others, at its start or in between; the host's clock sees both.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch

from kernel_coder.judge.gpu.stream_gate import gate_of

STEPS = 16
"""Of a probe, each a flush of the cache: 1 ms of an H200's. Shorter ones would see what the host takes for it."""

LOADED = 1.4
"""Somebody else has the GPU if a probe takes so many times as long as alone. It takes twice as long beside one who uses
it all the time and has as much of it."""


class Load:
    """Of one GPU, as this process finds it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.step_s = math.inf
        """A step's, the shortest median of all probes: what slows all steps alike is a load, too."""

        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
        for event in self._events:  # makes it, which may wait for the GPU, too
            event.record()
        torch.cuda.synchronize(device)

    def now(self, step: Callable[[], None]) -> float:
        """How many times as long as alone `step`, made so many times in a row, takes."""
        step()  # a kernel's first launch loads it, and may wait for the GPU: not behind a gate that only we can open
        torch.cuda.synchronize(self.device)
        gate = gate_of(self.device)
        started = time.perf_counter()
        if gate is not None:
            gate.shut()
        try:
            self._events[0].record()
            for event in self._events[1:]:
                step()
                event.record()
        finally:
            if gate is not None:
                started = gate.open()
        torch.cuda.synchronize(self.device)
        taken_s = time.perf_counter() - started
        steps_ms = [first.elapsed_time(second) for first, second in pairwise(self._events)]
        self.step_s = min(self.step_s, statistics.median(steps_ms) / 1e3)
        return taken_s / (STEPS * self.step_s)


@functools.cache
def load_of(device: torch.device) -> Load:
    """This process's, of a GPU."""
    return Load(device)
