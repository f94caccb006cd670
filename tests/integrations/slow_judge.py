"""A judge that takes a fixed time and runs nothing, importable in Ray's actors."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from kernel_coder.judge import JudgeConfig, Verdict, example_verdict
from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import Task


class SlowJudge:
    """Correct after ``# cost S`` seconds (1 by default), ``config.workers`` at a time; ``# kill`` ends the process."""

    profile = "none"
    versions = {"slow": "1"}  # noqa: RUF012

    def __init__(self, device: str, backend: str | None = None, *, config: JudgeConfig | None = None) -> None:
        self.device, self.backend, self.config = device, backend, config or JudgeConfig()
        self.workers = threading.Semaphore(self.config.parallel())

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        assert isinstance(task, Task)
        if "# kill" in candidate:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.workers:
            time.sleep(float(candidate.rpartition("# cost ")[2]) if "# cost " in candidate else 1.0)
        return example_verdict(
            "correct",
            task=task.id,
            task_hash=sha256_text(task.reference),
            candidate_hash=sha256_text(candidate),
            backend=backend or task.backend,
            device=str(os.getpid()),
        )

    def admit(self, task: Any) -> Admission:
        return Admission(task=task.id, task_hash=sha256_text(task.reference), admitted=True)

    def evaluate_many(self, pairs: Any, *, progress: bool = False, total: int | None = None) -> Any: ...
    def give_up_waiting(self) -> None: ...
    def close(self, *, wait: bool = True) -> None: ...
    def __enter__(self) -> SlowJudge:
        return self

    def __exit__(self, *_: object) -> None: ...
