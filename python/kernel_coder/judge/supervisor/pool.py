"""One judge for several GPUs. Each candidate goes to the GPU that is judging the fewest candidates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.judge.supervisor.batching import AnyJudge, askers, verdicts_of
from kernel_coder.judge.supervisor.judge import Judge
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.tasks.task import Task

OUT_OF_SERVICE = "is out of service"
"""Text in the reason of every verdict of a judge whose device is out of service."""


class JudgePool:
    """Judges on several devices, with the interface of a single judge.

    A device that is out of service gets no more candidates. The candidate during which it failed is judged again on
    another device, if there is one left.

    Args:
        devices: the devices. A Judge is opened on each of them.
        backend, options: arguments of every Judge.
        make_judge: called to open each judge, instead of :class:`kernel_coder.judge.Judge`.

    Raises:
        ValueError, SandboxError: a Judge cannot be opened. Those that were opened before are closed.
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
        self.config, self.profile, self.versions = first.config, first.profile, first.versions
        self.backend = backend
        self.device = ",".join(judge.device for judge in self.judges)
        self._lock = threading.Lock()
        self._running = [0] * len(self.judges)
        self._begun = [0] * len(self.judges)
        self._lost: set[int] = set()  # indices of judges whose device is out of service
        self._threads: ThreadPoolExecutor | None = None

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        """Judge one candidate, as :meth:`kernel_coder.judge.Judge.evaluate` does."""
        while True:
            with self._least_busy() as index:
                verdict = self.judges[index].evaluate(task, candidate, backend)
            if not self._is_lost(verdict, index):
                return verdict

    def admit(self, task: Task | str) -> Admission:
        """Check whether candidates can be judged on a task, as :meth:`kernel_coder.judge.Judge.admit` does."""
        with self._least_busy() as index:
            return self.judges[index].admit(task)

    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]:
        """Judge many candidates, as :meth:`kernel_coder.judge.Judge.evaluate_many` does."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(askers(self.device, self.config), thread_name_prefix="judge")
        return verdicts_of(self, pairs, self._threads, progress=progress, total=total)

    def give_up_waiting(self) -> None:
        """Give up the candidates that wait, on every device; see :meth:`kernel_coder.judge.Judge.give_up_waiting`."""
        for judge in self.judges:
            judge.give_up_waiting()

    def close(self, *, wait: bool = True) -> None:
        """End every process. Candidates that are being judged get their verdict first, unless `wait` is false."""
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
    def _least_busy(self) -> Iterator[int]:
        """Give the index of the judge with the fewest candidates now; among equals, with the fewest so far."""
        with self._lock:
            left = [index for index in range(len(self.judges)) if index not in self._lost] or [0]
            index = min(left, key=lambda index: (self._running[index], self._begun[index]))
            self._running[index] += 1
            self._begun[index] += 1
        try:
            yield index
        finally:
            with self._lock:
                self._running[index] -= 1

    def _is_lost(self, verdict: Verdict, index: int) -> bool:
        """Return whether the verdict says that the device is out of service and another device is left."""
        if verdict.outcome is not Outcome.HARNESS_FAILED or OUT_OF_SERVICE not in (verdict.reason or ""):
            return False
        with self._lock:
            self._lost.add(index)
            return len(self._lost) < len(self.judges)
