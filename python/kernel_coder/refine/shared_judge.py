"""One judge for several searches: equal code for the same task is judged once."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from kernel_coder.judge import Verdict
from kernel_coder.tasks import Task


class SharedJudge:
    """Judges the candidates of several searches, each of which runs in threads of its own.

    Searches for the same task often find the same code. It is judged by the first search that asks; the others wait for
    that verdict. A failure of the judge is not remembered, because it says nothing about the candidate.

    Args:
        judge: an object with the method ``evaluate`` of :class:`kernel_coder.judge.Judge`, for several threads.
    """

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Future[Verdict]] = {}  # by reference and code

    def evaluate(self, task: Task, code: str, backend: str | None = None) -> Verdict:
        """Return the verdict on the candidate, at most once from the judge."""
        key, made = (task.reference, code), Future[Verdict]()
        with self._lock:
            verdict = self._known.setdefault(key, made)
        if verdict is not made:
            return verdict.result()
        try:
            found = self._judge.evaluate(task, code, backend)
        except BaseException as error:
            self._forget(key)
            made.set_exception(error)
            raise
        if not found.is_scored:
            self._forget(key)
        made.set_result(found)
        return found

    def remember(self, task: Task, verdicts: Iterable[tuple[str, Verdict]]) -> None:
        """Adds verdicts of an earlier run, each with its candidate's code."""
        for code, verdict in verdicts:
            if verdict.is_scored:
                future = Future[Verdict]()
                future.set_result(verdict)
                with self._lock:
                    self._known.setdefault((task.reference, code), future)

    def _forget(self, key: tuple[str, str]) -> None:
        with self._lock:
            del self._known[key]
