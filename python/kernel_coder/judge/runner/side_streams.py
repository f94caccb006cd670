"""Streams of a candidate's own, for which the caller's stream has to wait.

A context is made with one hardware queue, since the driver makes queues for one process after another and many
processes wait for those of CUDA's usual eight. With one queue whatever is put on one stream starts after what was put
on another before, so that nobody would see where a candidate forgot to have the caller's stream wait for its own: its
user, who has eight, reads its output too early. So a candidate whose text speaks of streams gets eight as well, and
in a check every stream of torch's pool is kept busy beforehand, until after an output is read that nobody waits for.
A stream that was made in another way is not: there a missing wait shows only if the work takes longer than reading.
"""

from __future__ import annotations

import os

import torch

CONNECTIONS, OWN_CONNECTIONS = 1, 8
"""Hardware queues of a context, and of a candidate's that has streams of its own."""

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"

POOL, PRIORITIES = 32, (0, -1)
"""Streams that torch has of each priority, and hands out in turn; the priorities that code uses."""

HELD_CYCLES = 10_000_000
"""Of a GPU's clock: some milliseconds."""


class HeldStreams:
    """All streams of torch's pool, in a process that has several hardware queues; otherwise none.

    To be made before the candidate's code is there, which may replace what is asked here.
    """

    def __init__(self, device: torch.device) -> None:
        self._sleep, self._use, self._streams = torch.cuda._sleep, torch.cuda.stream, list[torch.cuda.Stream]()
        if device.type == "cuda" and os.environ.get(VARIABLE, str(CONNECTIONS)) != str(CONNECTIONS):
            self._streams = [torch.cuda.Stream(device, priority=one) for one in PRIORITIES for _ in range(POOL)]

    def hold(self) -> None:
        """Keep them busy for a while: what is put on them comes after that."""
        for stream in self._streams:
            with self._use(stream):
                self._sleep(HELD_CYCLES)
