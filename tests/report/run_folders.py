"""Fake run folders: the files that the loops write, in every state that a report must handle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_coder.judge import Outcome

CONFIG = {
    "model": {"name_or_path": "a-model"},
    "data": {"path": "nowhere.parquet", "format": "auto"},
    "rollout": {"num_generations": 4},
    "rewards": [{"name": "compiles", "weight": 1.0}, {"name": "correct", "weight": 0.5}],
    "optim": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
    "eval": {"num_tasks": 200, "num_generations": 1},
    "run": {"max_steps": 40},
}
SFT_CONFIG = {
    "model": {"name_or_path": "a-model"},
    "data": {"path": "nowhere.parquet"},
    "eval": {"num_tasks": 200, "num_answered": 60},
    "run": {"max_steps": -1, "num_train_epochs": 1.0},
}
ANSWER = "<thinking>\nHm.\n</thinking>\n<answer>\n```python\n{code}\n```\n</answer>"
PROMPT = [{"role": "user", "content": "Rewrite it.\n\n```python\nclass Model:\n    y = 1\n```"}]


def step_metrics(step: int, **changes: float | None) -> dict[str, Any]:
    """A healthy step: reward and correct answers rise together."""
    wave = 0.02 * math.sin(7 * step)
    correct = min(0.02 * step, 0.9) + abs(wave)
    shares = {f"judge/{outcome}": 0.0 for outcome in Outcome}
    shares |= {"judge/correct": correct, "judge/wrong_output": 1 - correct}
    return {
        "step": step,
        "reward": 1.5 * correct,
        "reward_std": 0.3,
        "frac_reward_zero_std": 0.25,
        "unscored": 0.0,
        "rewards/compiles/mean": correct,
        "rewards/correct/mean": correct,
        "completions/mean_length": 100.0 + step,
        "completions/min_length": 50.0,
        "completions/max_length": 150.0,
        "completions/clipped_ratio": 0.05,
        "loss": wave,
        "kl": 0.001 * step,
        "entropy": 1.0 - 0.005 * step,
        "grad_norm": 0.5 + wave,
        "learning_rate": 1e-4,
        "skipped_updates": 0.0,
        **shares,
        "judge/compiled": 1.0,
        "judge/speedup_geomean": 1.1,
        "time/rollout_s": 4.0,
        "time/judge_s": 2.0,
        "time/update_s": 3.0,
        "time/step_s": 10.0,
        "time/tokens_per_second": 500.0,
        **({} if step % 10 else {"eval/reward": 0.03 * step, "eval/judge/correct": 0.02 * step}),
        **changes,
    }


def sample(step: int, number: int = 0, *, outcome: str | None = "wrong_output", **changes: Any) -> dict[str, Any]:
    reason = {"correct": None, "rejected": "no kernel of its own: no triton kernel was launched"}
    verdict = {
        "outcome": outcome,
        "correct": outcome == "correct",
        "reason": reason.get(str(outcome), f"element {number} is off"),
    }
    return {
        "step": step,
        "id": f"{step}/0/task{number}/{number}",
        "task": f"task{number}",
        "prompt": PROMPT,
        "completion": ANSWER.format(code=f"class ModelNew:\n    x = {step}\n    y = {number}"),
        "finish_reason": "stop",
        "tokens": 20,
        "reward": 1.0 if outcome == "correct" else 0.25,
        "rewards": {"compiles": 1.0, "correct": float(outcome == "correct")},
        "advantage": 0.5,
        **({} if outcome is None else {"verdict": {**verdict, "feedback": "Look again.", "runtimes_ms": [0.5] * 9}}),
        **changes,
    }


def sft_metrics(step: int, **changes: float | None) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": step / 40,
        "loss": 4.0 / (1 + 0.1 * step),
        "grad_norm": 0.5,
        "learning_rate": 1e-3,
        "entropy": 2.0 / (1 + 0.1 * step),
        "num_tokens": 1000.0 * step,
        "time/data_s": 0.1,
        "time/update_s": 1.0,
        "time/step_s": 1.2,
        **({} if step % 10 else {"eval/loss": 4.0 / (1 + 0.09 * step), "eval/format": 0.5, "eval/judge/correct": 0.1}),
        **changes,
    }


def write_run(
    folder: Path,
    metrics: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]] = (),
    *,
    config: Mapping[str, Any] | None = CONFIG,
    summary: Mapping[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    if config is not None:
        (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def healthy(folder: Path, steps: int = 40, change: Callable[[int], Mapping[str, float]] = lambda step: {}) -> Path:
    """A finished run of ``steps`` steps. ``change`` may alter its numbers."""
    metrics = [step_metrics(step, **change(step)) for step in range(1, steps + 1)]
    metrics.insert(0, {"step": 0, "eval/reward": 0.0, "eval/judge/correct": 0.0})
    samples = [
        sample(step, k, outcome=("correct", "wrong_output")[k % 2]) for step in range(1, steps + 1) for k in range(4)
    ]
    return write_run(
        folder, metrics, samples, summary={"status": "finished", "steps": steps, "tasks": 300, "held_out_tasks": 200}
    )
