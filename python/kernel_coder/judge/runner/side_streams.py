"""Detects candidates that use CUDA streams of their own without making the caller's stream wait for them.

The user of such a candidate reads its output too early. The judge must detect that too, but each Runner has only one
hardware queue: the driver creates queues for one process at a time, and many processes would wait for CUDA's usual
eight. With a single queue all streams run one after another, so a missing wait has no effect. Therefore:

- The Runner of a candidate whose source mentions streams gets eight queues.
- Before each checked call every stream of torch's pool is kept busy for a few milliseconds. An output that is computed
  on one of these streams comes too late for a caller that does not wait.

A stream that the candidate creates without torch's pool is not kept busy. A missing wait for it is found only if its
work takes longer than reading the output.
"""

from __future__ import annotations

import os

import torch

CONNECTIONS, OWN_CONNECTIONS = 1, 8
"""Numbers of hardware queues of a process. Most Runners have the first number. The second is CUDA's usual one: the
Examiner has it, and the Runner of a candidate that uses streams."""

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
"""CUDA's environment variable for the number of hardware queues."""

POOL, PRIORITIES = 32, (0, -1)
"""Number of streams of each priority that torch creates and hands out in turn, and the priorities that code uses."""

HELD_CYCLES = 10_000_000
"""Time for which a stream is kept busy, in GPU cycles: 5 to 10 ms, much longer than reading an output."""


class HeldStreams:
    """Holds all streams of torch's pool if this process has several hardware queues; otherwise none.

    It must be created before the candidate's code is loaded, which might replace the functions used here.
    """

    def __init__(self, device: torch.device) -> None:
        self._sleep, self._use, self._streams = torch.cuda._sleep, torch.cuda.stream, list[torch.cuda.Stream]()
        if device.type == "cuda" and os.environ.get(VARIABLE, str(CONNECTIONS)) != str(CONNECTIONS):
            self._streams = [torch.cuda.Stream(device, priority=one) for one in PRIORITIES for _ in range(POOL)]

    def hold(self) -> None:
        """Keep these streams busy for :data:`HELD_CYCLES`. Work that is put on them starts after that."""
        for stream in self._streams:
            with self._use(stream):
                self._sleep(HELD_CYCLES)
