"""Fakes for evaluations: a judge that reads the verdict from the code, and a model with prepared answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernel_coder.evaluate.answers import Answer, Poll, Request
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.judge import Outcome, Verdict, example_verdict
from kernel_coder.judge.supervisor.worker_queue import WorkerQueue
from kernel_coder.tasks import Task

REFERENCE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * {scale}


def get_inputs():
    return [torch.rand(16, 16) - 0.5]


def get_init_inputs():
    return []
"""


def write_tasks(folder: Path, count: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for scale in range(1, count + 1):
        (folder / f"{scale}_scale.py").write_text(REFERENCE.format(scale=scale))
    return folder


def said(outcome: str, speedup: float | None = None) -> str:
    """An answer for which :class:`PretendJudge` gives this outcome. "nothing" gives an answer without code."""
    if outcome == "nothing":
        return "I would rather not."
    return f"<thinking>Hm.</thinking>\n<answer>\n```python\n# {outcome} {speedup}\nclass ModelNew: ...\n```\n</answer>"


class PretendJudge:
    """Gives the verdict that :func:`said` wrote into the first line of the code. Raises after ``die_after`` verdicts.

    With a config, `config.parallel()` candidates are judged at a time and the others wait, as with a real judge.
    """

    def __init__(self, die_after: int | None = None, overrule: str | None = None) -> None:
        self.die_after, self.overrule = die_after, overrule
        self.judged: list[str] = []
        self.arguments: dict[str, Any] = {}
        self.open = 0
        self.lock = threading.Lock()
        self.places: WorkerQueue[Any] | None = None

    def __call__(self, **arguments: Any) -> PretendJudge:
        self.arguments = arguments
        if (config := arguments.get("config")) is not None:
            self.places = WorkerQueue([SimpleNamespace(ready=(), last=None) for _ in range(config.parallel())])
        return self

    def __enter__(self) -> PretendJudge:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1

    def give_up_waiting(self) -> None:
        assert self.places is not None
        self.places.dismiss()

    def evaluate(self, task: Task, code: str, backend: str) -> Verdict:
        if self.places is None:
            return self._evaluated(task, code)
        if (worker := self.places.take(task.id)) is None:
            return example_verdict("harness_failed", task=task.id, versions={"torch": "0"})
        try:
            return self._evaluated(task, code)
        finally:
            self.places.give_back(worker)

    def _evaluated(self, task: Task, code: str) -> Verdict:
        with self.lock:
            if len(self.judged) == self.die_after:
                raise KeyboardInterrupt
            self.judged.append(task.id)
        return self.verdict(task, code)

    def verdict(self, task: Task, code: str) -> Verdict:
        first = code.partition("\n")[0].split()
        if self.overrule is not None or len(first) != 3 or first[1] not in list(Outcome):
            return example_verdict(self.overrule or "compile_error", task=task.id, versions={"torch": "0"})
        speedup = None if first[2] == "None" else float(first[2])
        others = {} if speedup is None else {"reference_compile_ms": 0.5 * speedup}
        return example_verdict(first[1], speedup=speedup, task=task.id, versions={"torch": "0"}, **others)


class PretendModel:
    """Answers with a function of the request, in reverse order. Raises after ``die_after`` answers."""

    def __init__(self, text: Callable[[Request], str], die_after: int | None = None) -> None:
        self.text, self.die_after = text, die_after
        self.asked: list[tuple[str, int]] = []

    def __call__(self, config: EvaluateConfig) -> PretendModel:
        return self

    def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
        for request in reversed(requests):
            if len(self.asked) == self.die_after:
                raise KeyboardInterrupt
            poll()
            self.asked.append((request.task.id, request.sample))
            yield request, Answer(self.text(request), "stop", 10, 20)

    def close(self) -> None: ...
