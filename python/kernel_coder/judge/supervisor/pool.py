"""One judge over several GPUs: every candidate goes to the GPU with the fewest candidates at work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.judge.supervisor.batching import AnyJudge, askers, devices_of, verdicts_of
from kernel_coder.judge.supervisor.judge import Judge
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks.task import Task

LOST = "is out of service"
"""In the reason of every verdict of a judge that has given its device up."""


def open_judge(device: str = "cpu", backend: str | None = None, **options: Any) -> AnyJudge:
    """A :class:`kernel_coder.judge.Judge` for one device, a :class:`JudgePool` for several (``cuda:1,cuda:2``).

    ``options`` are those of a Judge; ``config.workers`` is per device.
    """
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
