"""Divides work on rows between processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def map_in_processes(function: Callable[[Given], Made], items: Iterable[Given], num_proc: int) -> Iterator[Made]:
    """Yield ``function(item)`` for each item, in the items' order.

    Processes are started anew, not forked, because a process with CUDA or threads cannot be forked safely. So the
    function, the items and the results must be picklable, and a script that calls this needs the usual
    ``if __name__ == "__main__":``.

    Args:
        function: a function of a module, or a ``functools.partial`` of one.
        items: what it is called with. All are sent at once, so they should be few and large.
        num_proc: number of processes; 1: this process does the work itself.
    """
    if num_proc == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(num_proc, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(function, items)
