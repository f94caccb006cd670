"""What a run has taught its model, read from its own files: held-out tasks solved before and after, and an example.

The numbers are those of ``metrics.jsonl`` and ``samples.jsonl``, so a run that was killed and resumed has them, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from kernel_coder import ops
from kernel_coder.evaluate.metrics import intervals
from kernel_coder.train.logs import METRICS, SAMPLES

BARS = "▁▂▃▄▅▆▇█"
CORRECT = "judge/correct"

Bounds = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Solved:
    """The answers to held-out tasks at one step: by task, which of them are correct."""

    by_task: Mapping[str, Sequence[bool]]

    @property
    def rate(self) -> float:
        answers = [one for group in self.by_task.values() for one in group]
        return sum(answers) / len(answers)

    def interval(self) -> Bounds:
        return _interval([float(sum(group)) for group in self.by_task.values()], list(map(len, self.by_task.values())))


@dataclass(frozen=True, slots=True)
class Learning:
    """Before the first step, after the last one, and what lies between."""

    seconds: float | None = None
    curve: tuple[float, ...] = ()  # share of correct answers, of each step
    before: Solved | None = None
    after: Solved | None = None
    example: Mapping[str, Any] = field(default_factory=dict)  # a line of samples.jsonl

    def gain(self) -> tuple[float, Bounds] | None:
        """The difference, and its interval over the tasks: each is compared with itself."""
        if self.before is None or self.after is None:
            return None
        tasks = [name for name in self.before.by_task if name in self.after.by_task]
        rates = [
            [sum(one.by_task[name]) / len(one.by_task[name]) for name in tasks] for one in (self.before, self.after)
        ]
        gains = [after - before for before, after in zip(*rates, strict=True)]
        return sum(gains) / len(gains), _interval(gains, [1] * len(gains))

    def facts(self) -> dict[str, Any]:
        """For ``summary.json``: rates, their 95% intervals, seconds; None where a run has no such number."""
        rates = {
            name: one and (one.rate, one.interval()) for name, one in (("before", self.before), ("after", self.after))
        }
        found: dict[str, Any] = {"seconds_train": self.seconds}
        for name, value in {**rates, "gain": self.gain()}.items():
            rate, bounds = value or (None, None)
            low, high = bounds or (None, None)
            key = f"heldout_correct_{name}"
            found |= {key: rate, f"{key}_low": low, f"{key}_high": high}
        return found

    def words(self, run_dir: Path) -> Iterator[str]:
        """For people; nothing, if no judge has seen held-out answers."""
        gain = self.gain()
        if self.before is None or self.after is None or gain is None:
            return
        yield f"held-out answers that are correct, before: {_percent(self.before.rate, self.before.interval())}"
        yield f"                                    after: {_percent(self.after.rate, self.after.interval())}"
        yield f"                               difference: {_percent(*gain, sign='+')}"
        if self.curve:
            low, high = min(self.curve), max(self.curve)
            yield f"correct answers in training, by step: {sparkline(self.curve)}  ({low:.0%} to {high:.0%})"
        if self.example:
            yield ""
            yield f"A held-out task that is solved now, {self.example['task']}:"
            yield ""
            yield str(self.example["prompt"][-1]["content"])
            yield ""
            yield "The answer:"
            yield ""
            yield str(ops.parse_response(self.example["completion"]).code)
            yield ""
        yield f"Every number is in {run_dir / METRICS}, every answer in {run_dir / SAMPLES}."


def learning(run_dir: Path, last_step: int) -> Learning:
    """Reads the files of a run whose last finished step is this one."""
    records = [orjson.loads(line) for line in (run_dir / METRICS).read_bytes().splitlines()]
    seconds = sum(record.get("time/step_s", record.get("time/eval_s", 0.0)) for record in records)
    curve = tuple(record[CORRECT] for record in records if record.get(CORRECT) is not None)
    lines: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with (run_dir / SAMPLES).open("rb") as file:
        for text in file:
            if b'"id":"eval/' not in text:
                continue
            line = orjson.loads(text)
            if line["step"] in (0, last_step) and line.get("verdict"):
                lines[line["step"]].append(line)
    before = solved(lines[0])
    after = solved(lines[last_step]) if last_step else None
    return Learning(seconds, curve, before, after, example(lines[last_step], before))


def solved(lines: Sequence[Mapping[str, Any]]) -> Solved | None:
    """Which answers are correct; what the harness failed on is left out."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for line in lines:
        if line["verdict"]["outcome"] != "harness_failed":
            groups[line["task"]].append(line["verdict"]["outcome"] == "correct")
    return Solved(groups) if groups else None


def example(lines: Sequence[Mapping[str, Any]], before: Solved | None) -> Mapping[str, Any]:
    """The shortest correct answer to a task that was not solved before; else the shortest correct one; else nothing."""
    correct = [line for line in lines if line["verdict"]["outcome"] == "correct"]
    known = {} if before is None else before.by_task
    new = [line for line in correct if not any(known.get(line["task"], ()))]
    return min(new or correct, key=lambda line: (len(line["completion"]), line["id"]), default={})


def sparkline(values: Sequence[float], most: int = 60) -> str:
    """A bar a value, between 0 and 1; of more than ``most`` values means of neighbours.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    parts = np.array_split(np.array(values), min(most, len(values)))
    return "".join(BARS[min(int(float(part.mean()) * len(BARS)), len(BARS) - 1)] for part in parts)


def _interval(numerators: Sequence[float], denominators: Sequence[float]) -> Bounds:
    return intervals(np.array(numerators)[:, None], np.array(denominators, dtype=float)[:, None])[0]


def _percent(value: float, bounds: Bounds, sign: str = "") -> str:
    between = "" if bounds is None else f" (95% interval {bounds[0]:{sign}.1%} to {bounds[1]:{sign}.1%})"
    return f"{value:{sign}.1%}{between}"
