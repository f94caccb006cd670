"""A tiny supervised run: pairs in a folder, and every flag that makes it short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REFERENCE = """from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * {scale}


def get_inputs():
    return []


def get_init_inputs():
    return []
"""
SOLUTION = """from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
{lines}
        return x * {scale}
"""
TEMPLATE = "{% block user %}Rewrite {{ reference }}{% endblock %}"


def write_pairs(folder: Path, count: int = 10) -> Path:
    """Pairs of different lengths, so that a mean of means is not the mean."""
    folder.mkdir(parents=True, exist_ok=True)
    for scale in range(1, count + 1):
        lines = "\n".join(f"        y = {i}" for i in range(1 + scale % 4))
        (folder / f"scale{scale}.py").write_text(REFERENCE.format(scale=scale))
        (folder / f"scale{scale}_new.py").write_text(SOLUTION.format(scale=scale, lines=lines))
    (folder / "_short.jinja").write_text(TEMPLATE)
    return folder


def flags(pairs: Path, run_dir: Path, **changes: Any) -> list[str]:
    """The command line of a tiny run; ``optim__learning_rate=1`` changes ``--optim.learning_rate``."""
    values = {
        "data.path": pairs,
        "data.prompt_template": pairs / "_short.jinja",
        "data.max_length": 600,
        "run.output_dir": run_dir,
        "run.max_steps": 4,
        "run.num_threads": 1,
        "optim.learning_rate": 1e-2,
        "optim.lr_scheduler_type": "constant",
        "optim.per_device_train_batch_size": 1,
        "optim.gradient_accumulation_steps": 2,
        "eval.max_completion_length": 8,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without the times."""
    return [{k: v for k, v in r.items() if "time/" not in k} for r in records(run_dir / "metrics.jsonl")]


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())
