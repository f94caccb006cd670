"""A tiny run: tasks in a folder, rewards that a random model can earn, and the flags that make the run short."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

REFERENCE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * {scale}


def get_inputs():
    return [torch.rand(4, 4)]


def get_init_inputs():
    return []
"""


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def letters(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    """Share of lower-case letters: dense, so that groups differ and something is learnt."""
    texts = [text_of(completion) for completion in completions]
    return [sum(c.islower() for c in text) / max(len(text), 1) for text in texts]


def noise(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    """Draws from the global generator, as careless rewards do, and cannot score some answers."""
    return [None if len(text_of(c)) % 7 == 0 else random.random() / 10 for c in completions]


def infinite(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    return [float("inf") if i % 2 else float("nan") for i in range(len(completions))]


def unscored(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    return [None] * len(completions)


def write_tasks(folder: Path, count: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for scale in range(1, count + 1):
        (folder / f"scale{scale}.py").write_text(REFERENCE.format(scale=scale))
    return folder


def flags(tasks: Path, run_dir: Path, **changes: Any) -> list[str]:
    """The command line of a tiny run; ``optim__learning_rate=1`` changes ``--optim.learning_rate``."""
    values = {
        "data.path": tasks,
        "data.prompt_template": Path(__file__).with_name("short.jinja"),
        "run.output_dir": run_dir,
        "run.max_steps": 4,
        "run.num_threads": 1,
        "rollout.num_generations": 4,
        "rollout.max_completion_length": 12,
        "optim.learning_rate": 1e-3,
        "optim.per_device_train_batch_size": 8,
        "rewards": json.dumps([{"name": "tiny_run:letters"}, {"name": "tiny_run:noise", "weight": 0.5}]),
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(run_dir: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl without measured times."""
    return [{k: v for k, v in r.items() if not k.startswith("time/")} for r in records(run_dir / "metrics.jsonl")]


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())
