"""Measures whether another program uses the GPU: how much longer a piece of work takes than it would take alone.

Processes that use a GPU at the same time get slices of its time in turn. The length of a slice is not documented. So
work that is given to a busy GPU waits for other processes' slices, at its start or in between. The host's clock shows
both.
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

PROBE_STEPS = 16
"""Number of steps of a probe. Each flushes the cache, so together they take 1 ms on an H200. In a shorter probe the
host's own time would matter too much."""

LOADED = 1.4
"""A GPU counts as shared if a probe takes this many times as long as alone. Beside one process that keeps the GPU busy,
a probe takes twice as long."""


class LoadProbe:
    """Measures how busy one GPU is."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.step_s = math.inf
        """Seconds of one step on a GPU that is not shared: the shortest median of all probes so far. It is kept,
        because load may also slow all steps of a probe equally."""

        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(PROBE_STEPS + 1)]
        for event in self._events:  # the first record() creates the CUDA event, which may wait for the GPU
            event.record()
        torch.cuda.synchronize(device)

    def now(self, step: Callable[[], None]) -> float:
        """Return how many times as long as alone :data:`PROBE_STEPS` calls of `step` take. Each enqueues some work."""
        step()  # a kernel's first launch loads it and may wait for the GPU, which must not happen behind a shut gate
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
        return taken_s / (PROBE_STEPS * self.step_s)


@functools.cache
def load_probe_of(device: torch.device) -> LoadProbe:
    """Return this process's probe of a GPU."""
    return LoadProbe(device)
