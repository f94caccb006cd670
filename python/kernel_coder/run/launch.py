"""``--nproc N``: starts a command as N processes on this host, through torchrun's own launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kernel_coder.run.distributed import RESTARTS, torchrun_world
from kernel_coder.run.errors import EXIT_STOPPED, UsageError

FLAG = "--nproc"


def nproc_of(arguments: Sequence[str]) -> tuple[int | None, list[str]]:
    """Return the number after ``--nproc`` (None without that flag) and the other arguments.

    Raises:
        UsageError: it is not a positive number.

    >>> nproc_of(["--nproc", "8", "--config", "a.yaml"])
    (8, ['--config', 'a.yaml'])
    """
    found: str | None = None
    others: list[str] = []
    given = iter(arguments)
    for argument in given:
        if argument == FLAG:
            found = next(given, "")
        elif argument.startswith(f"{FLAG}="):
            found = argument.partition("=")[2]
        else:
            others.append(argument)
    if found is not None and (not found.isdigit() or int(found) < 1):
        raise UsageError(f"{FLAG} must be a number of processes, 1 or more; got {found or 'nothing'}")
    return (None if found is None else int(found)), others


def launched(module: str, arguments: Sequence[str], count: int | None) -> int | None:
    """Runs ``python -m module`` as ``count`` processes if that is more than one, and returns their exit code.

    A result of None means that this process must do the work itself.

    Raises:
        UsageError: there is a ``count`` although torchrun has started this process.
    """
    if count is None:
        return None
    if not torchrun_world().is_alone:
        raise UsageError(f"torchrun already started {torchrun_world().size} processes: leave {FLAG} out")
    return None if count == 1 else run_processes(module, arguments, count)


def run_processes(module: str, arguments: Sequence[str], count: int) -> int:
    """Runs ``python -m module`` as ``count`` processes on this host and returns the exit code of the run.

    It is 0 if all processes succeed, otherwise that of the first process that failed (1 if a signal killed it).
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # torchrun does the same, because several processes that each use all threads would slow each other down.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values() if failure.exitcode > 0]
        return codes[0] if codes else 1
    except SystemExit:
        raise
    except BaseException as error:  # the launcher raises SignalException after SIGTERM and SIGINT
        if type(error).__name__ != "SignalException":
            raise
        return EXIT_STOPPED
    return 0


def restarted() -> bool:
    """Return whether torchrun started this process again after a failure of the group."""
    return int(os.environ.get(RESTARTS, "0")) > 0
