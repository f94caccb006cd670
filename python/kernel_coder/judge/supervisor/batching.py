"""Judges many candidates at the same time, on one or several devices, and puts their verdicts in order."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any, Protocol
from urllib.parse import urlsplit

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.judge.verdict import Verdict
from kernel_coder.tasks.task import Task

REMOTE = ("http://", "https://", "ray://")
"""Prefixes of the names of judges that work in other processes; see :func:`kernel_coder.judge.open_judge`."""

REMOTE_WORKERS = 64
"""Number of candidates that a remote judge is assumed to judge at the same time, unless ``config.workers`` says it. If
that is too many, some wait in the remote queue, which is fair between clients."""


def is_remote(device: str) -> bool:
    """Return whether the device is the address of a judge that works in other processes.

    >>> is_remote("http://127.0.0.1:8400"), is_remote("cuda:0")
    (True, False)
    """
    return device.startswith(REMOTE)


def check_address(address: str | None, name: str, kinds: tuple[str, ...] = REMOTE) -> None:
    """Check the address of a remote judge. None is allowed.

    Raises:
        ValueError: it begins with none of `kinds`, or names no host.

    >>> check_address("127.0.0.1:8400", "url", ("http://", "https://"))
    Traceback (most recent call last):
    ValueError: url must begin with http:// or https://; got '127.0.0.1:8400'
    """
    if address is None:
        return
    kind = next((kind for kind in kinds if address.startswith(kind)), None)
    if kind is None:
        raise ValueError(f"{name} must begin with {' or '.join(kinds)}; got {address!r}")
    if not urlsplit(address).netloc:
        raise ValueError(f"{name} must name a host after {kind}; got {address!r}")


def devices_of(device: str) -> list[str]:
    """Split a text such as ``cuda:1,cuda:2`` into the names of its devices. The address of a remote judge is one name.

    Raises:
        ValueError: a name is no device, a device is named twice, or the CPU is named beside others.

    >>> devices_of("cuda:1,cuda:2"), devices_of("cpu"), devices_of("http://127.0.0.1:8400")
    (['cuda:1', 'cuda:2'], ['cpu'], ['http://127.0.0.1:8400'])
    """
    if is_remote(device):
        return [device]
    names = [name.strip() for name in device.split(",")]
    for name in names:
        kind, _, index = name.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and name != "cpu"):
            raise ValueError(f"device must be cpu, cuda, cuda:N or several such as cuda:1,cuda:2; got {device}")
    numbered = ["cuda:0" if name == "cuda" else name for name in names]
    if len(names) > 1 and ("cpu" in names or len(set(numbered)) < len(names)):
        raise ValueError(f"several devices must be different GPUs; got {device}")
    return names


def parallel(device: str, config: JudgeConfig) -> int:
    """Return how many candidates are judged at the same time, on all devices together.

    >>> parallel("cuda:1,cuda:2", JudgeConfig(workers=16))
    32
    """
    if is_remote(device):
        return config.workers or REMOTE_WORKERS
    return len(devices_of(device)) * config.parallel()


def askers(device: str, config: JudgeConfig) -> int:
    """Return how many candidates to submit at the same time: twice as many as are judged, so that a free worker can
    choose a candidate whose task it has prepared.

    >>> askers("cuda:1,cuda:2", JudgeConfig(workers=16))
    64
    """
    return 2 * parallel(device, config)


def tasks_at_once(device: str, config: JudgeConfig) -> int:
    """Return for how many tasks candidates are mixed (:func:`kernel_coder.tasks.order.in_turn`): one for two workers.

    >>> tasks_at_once("cuda:1,cuda:2", JudgeConfig(workers=16)), tasks_at_once("cpu", JudgeConfig(workers=1))
    (16, 1)
    """
    return max(parallel(device, config) // 2, 1)


MAX_VERDICTS_AHEAD = 1000
"""Upper limit of the verdicts that wait for an earlier one, so that a slow candidate does not fill the memory."""


def in_order(
    ask: Callable[..., Verdict], pairs: Iterable[Sequence[Any]], at_once: int, threads: Executor
) -> Generator[Verdict, None, None]:
    """Yield verdicts in the order of the pairs.

    A slow candidate keeps no worker idle: later candidates are judged meanwhile, and up to :data:`MAX_VERDICTS_AHEAD`
    verdicts wait for it.

    Args:
        ask: called with the items of a pair; returns the verdict.
        pairs: the candidates to judge. They are read only as far as needed.
        at_once: number of calls at the same time.
        threads: runs the calls.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as threads:
    ...     list(in_order(lambda task, candidate: f"{task}: {candidate}", [("a", "x"), ("b", "y")], 2, threads))
    ['a: x', 'b: y']
    """
    source = iter(pairs)
    waiting: deque[Future[Verdict]] = deque()
    under_way: set[Future[Verdict]] = set()
    try:
        while True:
            while (
                len(under_way) < at_once
                and len(waiting) < max(MAX_VERDICTS_AHEAD, at_once)
                and (pair := next(source, None)) is not None
            ):
                waiting.append(threads.submit(ask, *pair))
                under_way.add(waiting[-1])
            if not waiting:
                return
            if not waiting[0].done():
                wait(under_way, return_when=FIRST_COMPLETED)
            under_way = {one for one in under_way if not one.done()}
            if waiting[0].done():
                yield waiting.popleft().result()
    finally:
        for one in waiting:
            one.cancel()


class AnyJudge(Protocol):
    """The interface that :class:`kernel_coder.judge.Judge` and :class:`kernel_coder.judge.JudgePool` share."""

    device: str
    backend: str | None
    profile: Any
    versions: dict[str, str]

    @property
    def config(self) -> JudgeConfig: ...

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict: ...
    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]: ...
    def admit(self, task: Task | str) -> Admission: ...
    def give_up_waiting(self) -> None: ...
    def close(self, *, wait: bool = True) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, *rest: Any) -> Any: ...


def verdicts_of(
    judge: AnyJudge,
    pairs: Iterable[Sequence[Any]],
    threads: Executor,
    *,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[Verdict]:
    """Yield a judge's verdicts in the order of the pairs. `progress` shows a bar on stderr, whose length is `total` if
    the pairs have none."""
    from tqdm import tqdm

    known = len(pairs) if isinstance(pairs, Sequence) else total
    with (
        tqdm(total=known, unit="verdict", desc="judge", file=sys.stderr, disable=not progress) as bar,
        contextlib.closing(in_order(judge.evaluate, pairs, askers(judge.device, judge.config), threads)) as verdicts,
    ):
        for verdict in verdicts:
            yield verdict
            bar.update()
