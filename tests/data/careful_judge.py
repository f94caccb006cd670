"""A fake judge that takes verdicts from comments and refuses references with zeros; also a command with this judge."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from fake_judge import FakeJudge
from kernel_coder.data.__main__ import main
from kernel_coder.judge import Verdict
from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task


class CarefulJudge(FakeJudge):
    """A verdict takes `seconds`."""

    def __init__(self, device: str = "cpu", backend: str = "triton", config: Any = None) -> None:
        super().__init__(device, backend, config)
        self.seconds = float(os.environ.get("JUDGE_SECONDS", "0"))

    def evaluate(self, task: Task, candidate: str, backend: str | None = None) -> Verdict:
        time.sleep(self.seconds)
        return super().evaluate(task, candidate, backend)

    def admit(self, task: Task) -> Admission:
        refused = "torch.zeros" in task.reference
        reason = "the task is refused: the candidate that returns zeros would pass" if refused else None
        return Admission(task=task.id, task_hash=sha256_text(task.reference), admitted=not refused, reason=reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], make_judge=CarefulJudge))
