"""Records on disk with which a candidate can be judged again, for example when a new attack on the judge is known."""

from __future__ import annotations

import json
import os
import time

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.sandbox.profile import SandboxProfile
from kernel_coder.judge.verdict import Verdict
from kernel_coder.tasks.task import Task


def write_record(
    folder: str, task: Task, candidate: str, verdict: Verdict, config: JudgeConfig, profile: SandboxProfile
) -> None:
    """Write a file with both sources, the configuration, the sandbox and the verdict, in one atomic step."""
    os.makedirs(folder, exist_ok=True)
    name = f"{verdict.task_hash[:12]}-{verdict.candidate_hash[:12]}-{time.time_ns()}.json"
    record = {
        "task": {"id": task.id, "reference": task.reference, "entry_point": task.entry_point}
        | {"precision": task.precision, "backend": verdict.backend},
        "candidate": candidate,
        "config": config.model_dump(mode="json"),
        "sandbox": profile.as_dict(),
        "verdict": json.loads(verdict.to_json()),
    }
    path = os.path.join(folder, name)
    with open(f"{path}.part", "w") as file:
        json.dump(record, file)
    os.replace(f"{path}.part", path)
