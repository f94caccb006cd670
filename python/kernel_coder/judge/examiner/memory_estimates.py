"""Estimates of how much memory judging takes, so that large tasks wait for each other on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kernel_coder.judge.gpu.turns import MEMORY_SHARES
from kernel_coder.judge.wire.messages import MAX_SLOTS

SLOT_BYTES = {"cpu": 1 << 28, "cuda": 2 << 30}
"""Upper limit of the memory for several calls' inputs and outputs, by kind of device. One call may take more."""

SLOT_PART = 1 / 64
"""The same limit as a share of a GPU's memory. With more, every task would reserve memory on a GPU of 80 GB
(:data:`SMALL_PART`), and small tasks would wait for large ones."""

MEMORY_PER_INPUT_BYTE = 12
"""Estimate of a task's memory as a multiple of its inputs' bytes, until the reference has been called once."""

SMALL_PART = 1 / 24
"""A task that takes at most this share of a GPU's memory stays prepared for its next candidate. A larger one is closed
after each candidate, so that others can have its memory."""

WORKER_BYTES = 5 << 29
"""Memory of a GPU that each worker takes beside its task: the CUDA contexts of the Examiner, of the reference's Runner,
and of two candidates' Runners, about 0.6 GB each."""

WORKERS_PART = 2 / 3
"""Upper limit of the part of a GPU's memory that all workers take beside their tasks. On a GPU of 80 GB, 28 workers
and their tasks took 75 GB, and further tasks found no memory."""


@contextmanager
def most_allocated(device: torch.device) -> Iterator[Callable[[], int]]:
    """Give a function that returns, after the block, how many bytes torch allocated on a GPU at most in the block, in
    addition to what was allocated before; 0 without a GPU."""
    if device.type != "cuda":
        yield lambda: 0
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield lambda: torch.cuda.max_memory_allocated(device) - before


def slot_bytes(device: torch.device) -> int:
    """Return the upper limit of the memory for several calls' inputs and outputs on a device."""
    most = SLOT_BYTES[device.type]
    if device.type == "cuda":
        most = min(most, int(SLOT_PART * torch.cuda.get_device_properties(device).total_memory))
    return most


def several_bytes(size: int, slots: int = SLOT_BYTES["cuda"]) -> int:
    """Return the most bytes that inputs and outputs of several calls take if those of one call take `size`.

    Args:
        size: bytes of a call.
        slots: see :func:`slot_bytes`.
    """
    return min(3 * MAX_SLOTS * size, 3 * slots // 2)


def judging_bytes(
    inputs: int, outputs: int, call: int, longer: int = 2, slots: int = SLOT_BYTES["cuda"], oracle: int = 0
) -> int:
    """Return the most bytes that all processes together take while they judge on a task.

    A sample takes its inputs and, in double precision, its inputs, its outputs and all that the oracle's call takes.
    Or, if that is more, it takes its inputs, its outputs, and its outputs twice in double precision. Each of the two
    Runners shares outputs with the Examiner, and takes what a call takes. All processes share the inputs. If the task
    is small, the inputs and outputs of several calls are in memory.

    Args:
        inputs: bytes of a call's inputs.
        outputs: bytes of a call's outputs.
        call: the most bytes that a call allocates, including its outputs.
        longer: how many times as many bytes a number takes in double precision.
        slots: see :func:`slot_bytes`.
        oracle: the most bytes that a call of the oracle allocates, if that is more than `call` in double precision.

    >>> [judging_bytes(i << 30, o << 30, c << 30) >> 30 for i, o, c in ((8, 8, 8), (8, 8, 16), (16, 0, 0), (1, 8, 8))]
    [99, 131, 67, 77]
    """
    oracle = max(oracle, longer * call)
    sample = inputs + max(longer * (inputs + outputs) + oracle, (1 + 2 * longer) * outputs)
    return sample + inputs + 2 * outputs + 2 * call + several_bytes(inputs + outputs, slots)


def most_workers(total: int) -> int:
    """Return how many candidates can be judged at the same time on a GPU with `total` bytes of memory.

    >>> [most_workers(gigabytes << 30) for gigabytes in (4, 24, 80, 141)]
    [1, 6, 21, 37]
    """
    return max(int(WORKERS_PART * total) // WORKER_BYTES, 1)


def shares_of(wanted: int, total: int, workers: int) -> int:
    """Return how many shares of a GPU's memory hold `wanted` bytes; 0 if these are less than a share.

    Args:
        wanted: bytes that judging a task takes.
        total: bytes of the GPU.
        workers: number of candidates that are judged at the same time. What they take by themselves is not shared out,
            but at least half of the GPU is.

    >>> [shares_of(gigabytes << 30, 80 << 30, 8) for gigabytes in (0, 15, 30, 100)]
    [0, 16, 32, 64]
    """
    each = max(total - workers * WORKER_BYTES, total // 2) // MEMORY_SHARES
    return 0 if wanted < each else min(-(-wanted // each), MEMORY_SHARES)
