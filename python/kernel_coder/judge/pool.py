"""One judge over several GPUs: every candidate goes to the GPU with the fewest candidates at work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

        Takes from `pairs` no more than twice what it works on.
        """
        from tqdm import tqdm

        known = len(pairs) if isinstance(pairs, Sequence) else total
        most = askers(self.device, self.config)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(most, thread_name_prefix="judge")
        waiting: deque[Future[Verdict]] = deque()
        source = iter(pairs)
        with tqdm(total=known, unit="verdict", desc="judge", disable=not progress) as bar:
            try:
                while True:
                    while len(waiting) < most and (pair := next(source, None)) is not None:
                        waiting.append(self._threads.submit(self.evaluate, *pair))
                    if not waiting:
                        return
                    yield waiting.popleft().result()
                    bar.update()
            finally:
                for one in waiting:
                    one.cancel()

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
