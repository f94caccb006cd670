"""verifiers evaluates nano through a local server, in one turn and in several, with this project's judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers")
from chat_of_nano import nano_served
from judge_service import judge_served

pytestmark = [pytest.mark.timeout(1200), pytest.mark.filterwarnings("ignore")]

PLUGIN = """
from kernel_coder.integrations.verifiers import KernelEnv, KernelTaskset
__all__ = ["KernelEnv", "KernelTaskset"]
"""
TASKS = int(os.environ.get("KC_VERIFIERS_TASKS", "4"))


def evaluated(folder: Path, model: str, judge: str, turns: int) -> list[dict[str, Any]]:
    """The traces of ``vf-eval``."""
    (folder / "kernel_tasks.py").write_text(PLUGIN)
    command = [
        *(str(Path(sys.executable).with_name("vf-eval")), "kernel_tasks"),
        *("--model", "nano", "--client.base-url", model, "--client.api-key-var", "KC_NO_KEY"),
        *("--select.limit", str(TASKS), "--num-rollouts", "1", "--max-concurrent", "2"),
        *("--env.turns", str(turns), "--env.taskset.tasks", "packaged:pointwise_heldout"),
        *("--env.taskset.prompt-template", "nano", "--env.taskset.task.feedback-template", "nano"),
        *("--env.taskset.task.url", judge, "--sampling.temperature", "1.0"),
        *("--output-dir", str(folder), "--no-push", "--no-rich"),
    ]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "KC_NO_KEY": "none", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (file,) = folder.rglob("traces.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("turns", [1, 3])
def test_vf_eval_scores_nano(turns: int, tmp_path: Path) -> None:
    with judge_served() as judge, nano_served() as model:
        traces = evaluated(tmp_path, model, judge, turns)
    assert len(traces) == TASKS
    assert all(trace["ok"] for trace in traces), [trace["traces"][0]["errors"] for trace in traces]
    rollouts = [trace["traces"][0] for trace in traces]
    assert all(one["rewards"]["kernel"]["score"] >= 0.0 for one in rollouts)
    assert any(one["metrics"]["compiled"] for one in rollouts)
    answers = [[node for node in one["nodes"] if node["message"]["role"] == "assistant"] for one in rollouts]
    assert max(map(len, answers)) == 1 if turns == 1 else max(map(len, answers)) > 1
    right = sum(one["metrics"]["correct"] for one in rollouts)
    print(f"{turns} turns: {right:.0f} of {TASKS} right at the end")
