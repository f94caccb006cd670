"""How much memory judging on a task takes, so that large tasks wait for each other on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kernel_coder.judge.gpu.turns import SHARES
from kernel_coder.judge.wire.messages import MAX_SLOTS

SLOT_BYTES = {"cpu": 1 << 28, "cuda": 2 << 30}
"""Bytes that the inputs and outputs of several calls may take together, by kind of device. One call may take more."""

TIMES_INPUTS = 12
"""A task is expected to take so many times the bytes of its inputs, until the reference has been called once."""

SMALL_PART = 1 / 24
"""A task that takes a smaller part of a GPU's memory than this waits for no other one."""


@contextmanager
def most_allocated(device: torch.device) -> Iterator[Callable[[], int]]:
    """Gives a function that says, after the block, how many bytes torch allocated on a GPU at most, in addition to what
    it held before. Without a GPU that is 0."""
    if device.type != "cuda":
        yield lambda: 0
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield lambda: torch.cuda.max_memory_allocated(device) - before


def several_bytes(size: int) -> int:
    """Bytes that the inputs or outputs of several calls take at most, if those of one call take `size`."""
    return min(3 * MAX_SLOTS * size, 3 * SLOT_BYTES["cuda"] // 2)


def judging_bytes(inputs: int, outputs: int, call: int, longer: int = 2) -> int:
    """Bytes that all processes together take at most while they judge on a task.

    A sample takes its inputs, and in double precision its inputs, its outputs and all that the reference's call takes.
    Or, if that is more, it takes inputs, outputs and twice these in double precision. Each of two Runners shares
    outputs with the Examiner, and takes what a call takes. Inputs are shared by all. If the task is small, inputs and
    outputs of several calls are there.

    Args:
        inputs: bytes of a call's inputs.
        outputs: bytes of a call's outputs.
        call: bytes that a call allocates at most, outputs included.
        longer: a number in double precision takes so many times the bytes.

    >>> [judging_bytes(i << 30, o << 30, c << 30) >> 30 for i, o, c in ((8, 8, 8), (8, 8, 16), (16, 0, 0), (1, 8, 8))]
    [99, 131, 67, 77]
    """
    sample = inputs + max(longer * (inputs + outputs + call), (1 + 2 * longer) * outputs)
    return sample + inputs + 2 * outputs + 2 * call + several_bytes(inputs + outputs)


def shares_of(wanted: int, total: int) -> int:
    """Shares of a GPU's memory of `total` bytes that hold `wanted` bytes; 0 if that is a small part.

    >>> shares_of(5, 140), shares_of(70, 140), shares_of(1000, 140)
    (0, 8, 16)
    """
    return 0 if wanted <= SMALL_PART * total else min(-(-SHARES * wanted // total), SHARES)
