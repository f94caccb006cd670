"""A fake judge that reads the outcome from a comment in the candidate, such as ``# outcome: wrong_output``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

from kernel_coder.judge import Outcome, Verdict, example_verdict
from kernel_coder.judge.sandbox.probe import probe
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task

OUTCOME = re.compile(r"# outcome: (\w+)")
SPEEDUP = re.compile(r"# speedup: ([\d.]+)")


class FakeJudge:
    """The interface of ``kernel_coder.judge.Judge``. ``made`` holds every instance.

    ``begun`` numbers the calls of `evaluate` for a test that acts at one of them. ``next(begun)`` gives each number
    once, even to many threads. ``len(judged)`` could skip a number.
    """

    made: ClassVar[list[FakeJudge]] = []

    def __init__(self, device: str = "cpu", backend: str = "triton", config: Any = None) -> None:
        self.device, self.backend, self.config = device, backend, config
        self.judged: list[str] = []
        self.begun = itertools.count()
        self.is_open = False
        self.opened = 0
        self.profile = probe()
        FakeJudge.made.append(self)

    def __enter__(self) -> FakeJudge:
        self.is_open = True
        self.opened += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self, *, wait: bool = True) -> None:
        self.is_open = False

    def evaluate(self, task: Task, candidate: str, backend: str | None = None) -> Verdict:
        assert self.is_open
        self.judged.append(candidate)
        if "# crash the judge" in candidate:
            raise RuntimeError("the judge is broken")
        found = OUTCOME.search(candidate)
        outcome = Outcome(found[1]) if found else Outcome.WRONG_OUTPUT
        speedup = SPEEDUP.search(candidate)
        return example_verdict(
            outcome,
            speedup=float(speedup[1]) if speedup else None,
            task=task.id,
            task_hash=sha256_text(task.reference),
            candidate_hash=sha256_text(candidate),
            backend=backend or self.backend,
            device="cpu" if self.device == "cpu" else "NVIDIA H200",
            interpreted=self.device == "cpu" and speedup is None,
            seeds=(2**127 + 1,),
            stage_s={"build": 0.25, "check": 0.25, "all": 0.75},
        )

    def evaluate_many(self, pairs: Iterable[tuple[Any, ...]], progress: bool = False) -> Iterator[Verdict]:
        for task, candidate, *backend in pairs:
            yield self.evaluate(task, candidate, *backend)

    def admit(self, task: Task) -> SimpleNamespace:
        refused = "zeros" in task.reference
        return SimpleNamespace(
            task=task.id, admitted=not refused, reason="zeros would pass every check" if refused else None
        )
