"""The filter between reinforcement learning and supervised training: it keeps correct answers that are fast or concise.

RLoop (arXiv 2511.04285) trains on the correct answers of all steps. ConCuR (arXiv 2510.07356) finds that a model learns
most from the correct kernels with short reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from kernel_coder.judge import Verdict
from kernel_coder.loop.config import KeepConfig
from kernel_coder.ops import parse_response


@dataclass(frozen=True, slots=True)
class Solved:
    """A correct answer in the form of the format reward."""

    task: str
    prompt: list[dict[str, str]]
    completion: str
    thinking: int  # length of the reasoning, in characters
    speedup: float | None

    def row(self) -> dict[str, Any]:
        """Return the row for ``kernel-coder sft``, in TRL's format."""
        return {"prompt": self.prompt, "completion": self.completion, "task": self.task}


def solved_answers(samples: Path) -> Iterator[Solved]:
    """Yield the correct answers to first prompts in the ``samples.jsonl`` of a training run, without those to held-out
    tasks.

    An answer to feedback is left out, because supervised training would learn it without the feedback.
    """
    with samples.open("rb") as lines:
        for line in lines:
            record = json.loads(line)  # not orjson, which would round seeds of more than 64 bits
            if record["id"].startswith("eval/"):
                continue
            first = (record.get("turns") or [record])[0]
            if (first.get("verdict") or {}).get("outcome") != "correct":
                continue
            response = parse_response(first["completion"])
            if response.ok:
                speedup = Verdict.from_json(json.dumps(first["verdict"])).speedup
                shown = record["prompt"]
                prompt = shown[:-1] if shown[-1]["role"] == "assistant" else shown
                yield Solved(record["task"], prompt, first["completion"], len(response.thinking or ""), speedup)


def keep(answers: Iterable[Solved], config: KeepConfig, seed: int) -> list[Solved]:
    """Return the answers to learn, task by task. Each text counts once for each task.

    >>> answers = [Solved("relu", [], f"answer {n}", thinking=n, speedup=None) for n in (30, 10, 20, 10)]
    >>> [one.thinking for one in keep(answers, KeepConfig(per_task=2), seed=0)]
    [10, 20]
    """
    different = {(one.task, one.completion): one for one in answers}
    by_task: dict[str, list[Solved]] = {}
    for one in different.values():
        if config.min_speedup is not None and (one.speedup or 0.0) < config.min_speedup:
            continue
        if config.max_thinking is None or one.thinking <= config.max_thinking:
            by_task.setdefault(one.task, []).append(one)
    kept: list[Solved] = []
    for task in sorted(by_task):
        ordered = _ordered(by_task[task], config.by, Random(f"{seed}/{task}"))
        kept += ordered if config.by == "all" else ordered[: config.per_task]
    return kept


def _ordered(answers: list[Solved], by: str, random: Random) -> list[Solved]:
    if by == "random":
        return random.sample(answers, len(answers))
    keys: dict[str, Any] = {
        "concise": lambda one: (one.thinking, -(one.speedup or 0.0), len(one.completion)),
        "fast": lambda one: (-(one.speedup or 0.0), one.thinking, len(one.completion)),
        "longest": lambda one: (-one.thinking, -len(one.completion)),
        "all": lambda one: 0,
    }
    return sorted(answers, key=keys[by])
