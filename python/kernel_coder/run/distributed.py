"""Several processes, one for each GPU, that work on one run: their ranks, and their communication.

torchrun starts them, or ``--nproc N``, which uses the same launcher (:mod:`kernel_coder.run.launch`). Each process
finds its rank in the environment and joins the others in :func:`joined`. Without torchrun there is one process, and
every function here then returns its argument at once.

All ranks run the same program and draw the same tasks. They divide only the work that takes long: sampling, judging,
forward and backward passes. Small objects, such as answers and verdicts, are exchanged as a whole.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:  # commands that only parse flags start without torch
    from torch import Tensor

T = TypeVar("T")

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets in every process."""

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""Environment variable with the number of times that torchrun has started this process's group again."""


@dataclass(frozen=True, slots=True)
class World:
    """The place of this process among the processes of the run.

    Attributes:
        rank: number of this process, from 0. Rank 0 writes logs and checkpoints.
        size: number of processes.
        local_rank: number of this process on its host. It is also the number of its GPU.
        local_size: number of processes on this host.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is only this process."""
        return self.size == 1

    @property
    def host(self) -> int:
        """Number of this process's host. Every host has the same number of processes."""
        return self.rank // self.local_size


_world = World()


def world() -> World:
    """Return the place of this process; that of a single process before :func:`joined` and after it."""
    return _world


def torchrun_world(environment: Mapping[str, str] = os.environ) -> World:
    """Return the place that torchrun gave this process; that of a single process if torchrun did not start it.

    >>> torchrun_world({})
    World(rank=0, size=1, local_rank=0, local_size=1)
    """
    if not all(name in environment for name in VARIABLES):
        return World()
    rank, size, local_rank, local_size = (int(environment[name]) for name in VARIABLES[:4])
    return World(rank, size, local_rank, local_size)


@contextmanager
def joined(timeout_s: float = 1800.0) -> Iterator[World]:
    """Joins the other processes of the run that torchrun started; does nothing if there are none.

    Tensors on GPUs are exchanged through NCCL, all others through gloo.

    Args:
        timeout_s: longest wait for the other processes in one exchange, in seconds. Ranks wait for each other while
            answers are judged, so it must be longer than the slowest verdict.
    """
    global _world
    found = torchrun_world()
    if found.is_alone or not _world.is_alone:
        yield _world
        return
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(found.local_rank % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    # torchrun's store outlives the processes that it starts again. Under the same keys gloo would find the addresses of
    # the dead ones.
    store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    store = dist.PrefixStore(f"attempt {os.environ.get(RESTARTS, '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
    _world = found
    try:
        yield found
    finally:
        _world = World()
        dist.destroy_process_group()


def end_process(code: int) -> NoReturn:
    """Ends this process with an exit code. Every command that torchrun may start ends in this way.

    A rank does not shut the interpreter down. gloo's threads outlive ``destroy_process_group``. One of them may still
    release a tensor of the last exchange, for which it needs Python's lock. If the shutdown has begun, that ends the
    process with SIGABRT, and torchrun counts the run as failed (torch 2.13: 4 of 34 short runs of two processes).
    """
    if torchrun_world().is_alone:
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def gathered(value: T) -> list[T]:
    """Return the values of all ranks, in the order of the ranks. They must be picklable."""
    if _world.is_alone:
        return [value]
    import torch.distributed as dist

    found: list[T] = [value] * _world.size
    dist.all_gather_object(found, value)
    return found


def from_first(make: Callable[[], T]) -> T:
    """Return the result of ``make`` on rank 0, which alone calls it. An exception of rank 0 is raised on every rank."""
    if _world.is_alone:
        return make()
    import torch.distributed as dist

    found: list[tuple[T | None, BaseException | None]] = [(None, None)]
    if _world.is_first:
        try:
            found = [(make(), None)]
        except Exception as error:
            found = [(None, error)]
    dist.broadcast_object_list(found, src=0)
    value, problem = found[0]
    if problem is not None:
        raise problem
    return value  # type: ignore[return-value]


def summed(values: Tensor) -> Tensor:
    """Return the sum over all ranks of a tensor on the CPU or on this rank's GPU."""
    if _world.is_alone:
        return values
    import torch.distributed as dist

    total = values.clone()
    dist.all_reduce(total)
    return total


def any_of(flag: bool) -> bool:
    """Return whether the flag is true on at least one rank."""
    if _world.is_alone:
        return flag
    import torch

    return bool(summed(torch.tensor(int(flag))) > 0)


def barrier() -> None:
    """Waits until every rank has called this."""
    any_of(False)
