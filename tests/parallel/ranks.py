"""Runs a function in several CPU processes. Like the processes of torchrun, they form a group, here with gloo."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

LIMIT_S = 240
"""Longest time, in seconds, for the ranks to finish; they start in seconds and compute little."""


def processes() -> Any:
    """A context that forks processes from a server with all modules imported, so that each process starts fast."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kernel_coder.train.loop", "kernel_coder.sft.loop", "torch.distributed.fsdp"])
    return context


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The environment variables that torchrun sets."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def on_rank(
    rank: int, size: int, port: int, pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(environment(rank, size, port))
    import torch
    from kernel_coder.run import distributed

    torch.set_num_threads(1)
    try:
        with distributed.joined(timeout_s=LIMIT_S):
            pipe.send((True, function(*arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The results of ``function(*arguments)`` in ``size`` joined processes, in the order of their ranks."""
    port, context = free_port(), processes()
    pipes, started = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        started.append(context.Process(target=on_rank, args=(rank, size, port, theirs, function, arguments)))
        started[-1].start()
        pipes.append(ours)
    found = []
    try:
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(LIMIT_S), f"rank {rank} has not finished after {LIMIT_S} s"
            found.append(pipe.recv())
    finally:
        for process in started:
            process.join(5)
            process.kill()
    for rank, (whole, value) in enumerate(found):
        assert whole, f"rank {rank} of {size}:\n{value}"
    return [value for _, value in found]
