"""Finds operators of torch that run where an audit does not see them.

An audit sees the operators that pass through its dispatch mode. That mode holds for one thread, and native code can
switch it off. torch's profiler records the operators of all threads, and also when they pass through a dispatch mode.
So an operator that computes something, and did not pass through a mode, was hidden.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile

from kernel_coder.judge.runner.library_symbols import computes

DISPATCH_EVENT = "PythonDispatchMode"
"""Name of the profiler's event for an operator that passes through a dispatch mode."""

HIDING_WORDS = frozenset(
    {"threading", "_thread", "Thread", "parallel_apply", "DataParallel", "ispatch", "torch._C"}
    | {"getattr", "import_module", "__import__", "exec(", "eval(", "vars(", "globals(", "__dict__"}
)
"""Text in a candidate that may start threads or switch a mode off. Other Python code cannot hide an operator. A call is
recorded only if there is such text, because the profiler takes some hundredths of a second."""


@dataclass
class Event:
    """An operator that ran: its name, and the operators that it called, in order."""

    name: str
    children: list[Event] = field(default_factory=list)


class OperatorWatch:
    """Records the operators that run in its context and that no dispatch mode sees.

    >>> import threading
    >>> x = torch.ones(2, 2)
    >>> with OperatorWatch() as watch:
    ...     thread = threading.Thread(target=lambda: x @ x)
    ...     thread.start()
    ...     thread.join()
    >>> watch.unseen
    ['aten::mm']
    """

    def __init__(self) -> None:
        self.unseen: list[str] = []
        """Names of the operators, each once."""

    def __enter__(self) -> OperatorWatch:
        config = _ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(use_kineto=True, experimental_config=config)
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)
        results = self._profile.kineto_results
        self.unseen = list(dict.fromkeys(unseen_among(events_of(results.events() if results else []))))


def events_of(recorded: Iterable[Any]) -> list[Event]:
    """Return the outermost events of each thread. An event contains those that ran within its time."""
    found: list[Event] = []
    open_events: list[tuple[Event, int, int]] = []  # event, thread and end
    spans = sorted((one.start_thread_id(), one.start_ns(), -one.duration_ns(), one.name()) for one in recorded)
    for thread, start, duration, name in spans:
        while open_events and (open_events[-1][1] != thread or open_events[-1][2] <= start):
            open_events.pop()
        event = Event(name)
        (open_events[-1][0].children if open_events else found).append(event)
        open_events.append((event, thread, start - duration))
    return found


def unseen_among(events: Iterable[Event]) -> Iterator[str]:
    """Yield the names of operators of torch that compute something and did not pass through a dispatch mode.

    >>> seen = Event("aten::mm", [Event(DISPATCH_EVENT, [Event("aten::mm")])])
    >>> list(unseen_among([Event("aten::linear", [seen]), Event("aten::linear", [Event("aten::addmm")])]))
    ['aten::addmm']
    """
    for event in events:
        space, _, name = event.name.partition("::")
        if not name:
            yield from unseen_among(event.children)  # a mark of the profiler or of the candidate
        elif any(child.name == DISPATCH_EVENT for child in event.children):
            continue
        elif _only_calls_others(space, name):
            yield from unseen_among(event.children)
        elif space != "aten" or computes(name):
            yield event.name


@cache
def _only_calls_others(space: str, name: str) -> bool:
    """Return whether this is no operator (autograd's steps have such names, too) or one that only calls others."""
    packet = getattr(getattr(torch.ops, space), name, None)
    if packet is None:
        return True
    for overload in packet.overloads():
        with contextlib.suppress(RuntimeError):  # some overloads are TorchScript's, and the dispatcher has none of them
            full = f"{space}::{name}.{overload}".removesuffix(".default")
            if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
                return True
    return False
