"""One judge over several GPUs: every candidate goes to the GPU with the fewest candidates at work."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks.task import Task

if TYPE_CHECKING:
    from kernel_coder.judge.judge import Admission

LOST = "is out of service"
"""In the reason of every verdict of a judge that has given its device up."""


class AnyJudge(Protocol):
    """What :class:`kernel_coder.judge.Judge` and :class:`JudgePool` have in common."""

    config: JudgeConfig
    device: str
    backend: str | None
    profile: Any
    versions: dict[str, str]

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict: ...
    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]: ...
    def admit(self, task: Task | str) -> Admission: ...
    def give_up_waiting(self) -> None: ...
    def close(self, *, wait: bool = True) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, *rest: Any) -> Any: ...


def devices_of(device: str) -> list[str]:
    """The devices that a text such as ``cuda:1,cuda:2`` names, each once.

    Raises:
        ValueError: one of them is no device, is named twice, or is not a GPU beside others.

    >>> devices_of("cuda:1,cuda:2"), devices_of("cpu")
    (['cuda:1', 'cuda:2'], ['cpu'])
    """
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
    """Candidates that are judged at a time on all the devices together.

    >>> parallel("cuda:1,cuda:2", JudgeConfig(workers=16))
    32
    """
    return len(devices_of(device)) * config.parallel()


def askers(device: str, config: JudgeConfig) -> int:
    """Candidates to ask about at a time: as many as are judged wait, so that workers find tasks that they have ready.

    >>> askers("cuda:1,cuda:2", JudgeConfig(workers=16))
    64
    """
    return 2 * parallel(device, config)


def tasks_at_once(device: str, config: JudgeConfig) -> int:
    """Tasks whose candidates take turns, see :func:`kernel_coder.tasks.order.in_turn`: two workers for each.

    >>> tasks_at_once("cuda:1,cuda:2", JudgeConfig(workers=16)), tasks_at_once("cpu", JudgeConfig(workers=1))
    (16, 1)
    """
    return max(parallel(device, config) // 2, 1)


AHEAD = 1000
"""Verdicts that may wait for one before them."""


def in_order(
    ask: Callable[..., Verdict], pairs: Iterable[Sequence[Any]], at_once: int, threads: Executor
) -> Generator[Verdict, None, None]:
    """Verdicts in the order of the pairs, so many of which are asked about at a time.

    One that takes long keeps no worker idle: those after it are judged meanwhile, and up to :data:`AHEAD` verdicts
    wait for it.

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
                and len(waiting) < max(AHEAD, at_once)
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


def verdicts_of(
    judge: AnyJudge,
    pairs: Iterable[Sequence[Any]],
    threads: Executor,
    *,
    progress: bool = False,
    total: int | None = None,
) -> Iterator[Verdict]:
    """A judge's verdicts in the order of the pairs, with a bar on stderr if wanted."""
    from tqdm import tqdm

    known = len(pairs) if isinstance(pairs, Sequence) else total
    with (
        tqdm(total=known, unit="verdict", desc="judge", file=sys.stderr, disable=not progress) as bar,
        contextlib.closing(in_order(judge.evaluate, pairs, askers(judge.device, judge.config), threads)) as verdicts,
    ):
        for verdict in verdicts:
            yield verdict
            bar.update()


def open_judge(device: str = "cpu", backend: str | None = None, **options: Any) -> AnyJudge:
    """A :class:`kernel_coder.judge.Judge` for one device, a :class:`JudgePool` for several (``cuda:1,cuda:2``).

    ``options`` are those of a Judge; ``config.workers`` is per device.
    """
    from kernel_coder.judge.judge import Judge

    devices = devices_of(device)
    return Judge(device, backend, **options) if len(devices) == 1 else JudgePool(devices, backend, **options)


class JudgePool:
    """Judges on several devices behind the interface of one.

    A device that is out of service is asked no more, and its candidate is judged on another, as long as there is one.

    Args:
        devices: a Judge is opened on each.
        backend, options: of every Judge.
        make_judge: in the place of :class:`kernel_coder.judge.Judge`.

    Raises:
        ValueError, SandboxError: a Judge cannot be opened; those that were are closed.
    """

    def __init__(
        self,
        devices: Sequence[str],
        backend: str | None = None,
        *,
        make_judge: Callable[..., AnyJudge] | None = None,
        **options: Any,
    ) -> None:
        if make_judge is None:
            from kernel_coder.judge.judge import Judge

            make_judge = Judge
        if not devices:
            raise ValueError("a pool needs at least one device")
        self.judges: list[AnyJudge] = []
        try:
            for device in devices:
                self.judges.append(make_judge(device, backend, **options))
        except BaseException:
            self.close(wait=False)
            raise
        first = self.judges[0]
        self.config, self.backend, self.profile, self.versions = (
            first.config,
            backend,
            first.profile,
            first.versions,
        )
        self.device = ",".join(judge.device for judge in self.judges)
        self._lock = threading.Lock()
        self._running = [0] * len(self.judges)
        self._begun = [0] * len(self.judges)
        self._lost: set[int] = set()
        self._threads: ThreadPoolExecutor | None = None

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        """As :meth:`kernel_coder.judge.Judge.evaluate`, on the device with the fewest candidates at work."""
        while True:
            with self._on_one() as place:
                verdict = self.judges[place].evaluate(task, candidate, backend)
            if not self._is_lost(verdict, place):
                return verdict

    def admit(self, task: Task | str) -> Admission:
        """As :meth:`kernel_coder.judge.Judge.admit`, on the device with the fewest candidates at work."""
        with self._on_one() as place:
            return self.judges[place].admit(task)

    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]:
        """Judge ``(task, candidate)`` or ``(task, candidate, backend)``, several at a time; verdicts in order.

        Takes from `pairs` no more than twice what it works on, and what waits for a verdict before it.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(askers(self.device, self.config), thread_name_prefix="judge")
        return verdicts_of(self, pairs, self._threads, progress=progress, total=total)

    def give_up_waiting(self) -> None:
        """As :meth:`kernel_coder.judge.Judge.give_up_waiting`, on every device."""
        for judge in self.judges:
            judge.give_up_waiting()

    def close(self, *, wait: bool = True) -> None:
        """End every process; without `wait`, verdicts that are being made are given up."""
        threads = getattr(self, "_threads", None)
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        for judge in self.judges:
            judge.close(wait=wait)
        if threads is not None:
            threads.shutdown()

    def __enter__(self) -> JudgePool:
        for judge in self.judges:
            judge.__enter__()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    @contextmanager
    def _on_one(self) -> Iterator[int]:
        """The place of a judge that has the fewest candidates at work, and of those the one that has had the fewest."""
        with self._lock:
            left = [place for place in range(len(self.judges)) if place not in self._lost] or [0]
            place = min(left, key=lambda place: (self._running[place], self._begun[place]))
            self._running[place] += 1
            self._begun[place] += 1
        try:
            yield place
        finally:
            with self._lock:
                self._running[place] -= 1

    def _is_lost(self, verdict: Verdict, place: int) -> bool:
        """Whether this says that the device is out of service, and another is there to ask."""
        if verdict.outcome is not Outcome.HARNESS_FAILED or LOST not in (verdict.reason or ""):
            return False
        with self._lock:
            self._lost.add(place)
            return len(self._lost) < len(self.judges)
