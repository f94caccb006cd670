"""Shows what a model learned in a run: held-out tasks solved before and after it, and an example.

The numbers come from ``metrics.jsonl`` and ``samples.jsonl``, so they also cover a run that was killed and resumed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from kernel_coder import ops
from kernel_coder.evaluate.metrics import intervals
from kernel_coder.run.logs import METRICS, SAMPLES

BARS = "▁▂▃▄▅▆▇█"
"""The characters of a sparkline, from 0 to 1."""

CORRECT = "judge/correct"
"""The metric that the training curve shows."""

Bounds = tuple[float, float] | None
"""A 95% confidence interval; None if there are too few tasks for one."""


@dataclass(frozen=True, slots=True)
class Solved:
    """For each held-out task, which answers are correct at one step.

    A conversation counts as correct if one of its first answers is, up to some turn.
    """

    by_task: Mapping[str, Sequence[bool]]

    @property
    def rate(self) -> float:
        """The share of correct answers."""
        answers = [one for group in self.by_task.values() for one in group]
        return sum(answers) / len(answers)

    def interval(self) -> Bounds:
        """Return the confidence interval of the rate, over the tasks."""
        return _interval([float(sum(group)) for group in self.by_task.values()], list(map(len, self.by_task.values())))

    def more_than(self, other: Solved) -> tuple[float, Bounds] | None:
        """Return how much the rate is above another one, with the interval over the tasks that both have (paired)."""
        tasks = [name for name in other.by_task if name in self.by_task]
        if not tasks:
            return None
        rates = [[sum(one.by_task[name]) / len(one.by_task[name]) for name in tasks] for one in (other, self)]
        gains = [after - before for before, after in zip(*rates, strict=True)]
        return sum(gains) / len(gains), _interval(gains, [1] * len(gains))


@dataclass(frozen=True, slots=True)
class Learning:
    """Held-out tasks before the first and after the last step, and the steps between."""

    seconds: float | None = None  # duration of all steps and evaluations
    curve: tuple[float, ...] = ()  # share of correct answers in each step
    before_by_turn: tuple[Solved, ...] = ()  # solved within 1, 2, ... turns before training
    after_by_turn: tuple[Solved, ...] = ()  # likewise after training
    example: Mapping[str, Any] = field(default_factory=dict)  # a line of samples.jsonl

    @property
    def before(self) -> Solved | None:
        """The tasks solved within all turns, before training."""
        return self.before_by_turn[-1] if self.before_by_turn else None

    @property
    def after(self) -> Solved | None:
        """The tasks solved within all turns, after training."""
        return self.after_by_turn[-1] if self.after_by_turn else None

    def gain(self) -> tuple[float, Bounds] | None:
        """Return how much training raised the rate."""
        return self.after.more_than(self.before) if self.before and self.after else None

    def gain_of_turns(self) -> tuple[float, Bounds] | None:
        """Return how much the further turns raise the rate, after training."""
        return self.after.more_than(self.after_by_turn[0]) if self.after else None

    def facts(self, turns: int = 1) -> dict[str, Any]:
        """Return the entries of ``summary.json``: duration in seconds, rates and their 95% intervals; None if there is
        no number.

        If conversations have several turns, also the rates within each number of turns.
        """
        rates: dict[str, tuple[float, Bounds] | None] = {
            "heldout_correct_before": _rate(self.before),
            "heldout_correct_after": _rate(self.after),
            "heldout_correct_gain": self.gain(),
        }
        if turns > 1:
            for name, known in (("before", self.before_by_turn), ("after", self.after_by_turn)):
                for t in range(turns):
                    rates[f"heldout_correct_by_turn_{t + 1}_{name}"] = _rate(known[t] if known else None)
            rates["heldout_gain_of_turns"] = self.gain_of_turns()
        found: dict[str, Any] = {"seconds_train": self.seconds}
        for name, value in rates.items():
            rate, bounds = value or (None, None)
            low, high = bounds or (None, None)
            found |= {name: rate, f"{name}_low": low, f"{name}_high": high}
        return found

    def words(self, run_dir: Path) -> Iterator[str]:
        """Yield the lines to print after a run; none if no held-out answers were judged."""
        gain = self.gain()
        if self.before is None or self.after is None or gain is None:
            return
        several = len(self.after_by_turn) > 1
        told = "held-out conversations that are solved" if several else "held-out answers that are correct"
        yield f"{told}, before: {_percent(self.before.rate, self.before.interval())}"
        yield f"{'after':>{len(told) + 8}}: {_percent(self.after.rate, self.after.interval())}"
        yield f"{'difference':>{len(told) + 8}}: {_percent(*gain, sign='+')}"
        further = self.gain_of_turns()
        if several and further is not None:
            for name, known in (("before", self.before_by_turn), ("after", self.after_by_turn)):
                yield f"solved within 1 to {len(known)} turns, {name}: {', '.join(f'{one.rate:.1%}' for one in known)}"
            yield f"the last turn over the first, after: {_percent(*further, sign='+')}"
        if self.curve:
            low, high = min(self.curve), max(self.curve)
            yield f"correct answers in training, by step: {sparkline(self.curve)}  ({low:.0%} to {high:.0%})"
        if self.example:
            yield ""
            name = re.sub(r"/\d{9,}$", "", str(self.example["task"]))  # without the number at its end
            yield f"A held-out task that is solved now, {name}:"
            yield ""
            yield str(self.example["prompt"][-1]["content"])
            yield ""
            yield "The answer:"
            yield ""
            yield str(ops.parse_response(self.example["completion"]).code)
            yield ""
        yield f"Every number is in {run_dir / METRICS}, every answer in {run_dir / SAMPLES}."


def learning(run_dir: Path, last_step: int, turns: int = 1) -> Learning:
    """Reads the files of a run.

    Args:
        run_dir: the run's folder.
        last_step: the last finished step.
        turns: answers that a conversation may have.
    """
    records = [orjson.loads(line) for line in (run_dir / METRICS).read_bytes().splitlines()]
    seconds = sum(record.get("time/step_s", record.get("time/eval_s", 0.0)) for record in records)
    curve = tuple(record[CORRECT] for record in records if record.get(CORRECT) is not None)
    lines = held_out(run_dir, (0, last_step))
    before = solved_by_turn(lines[0], turns)
    after = solved_by_turn(lines[last_step], turns) if last_step else ()
    return Learning(seconds, curve, before, after, example(lines[last_step], before[-1] if before else None))


def held_out(run_dir: Path, steps: Collection[int]) -> dict[int, list[dict[str, Any]]]:
    """Return the judged conversations on held-out tasks at these steps."""
    lines: dict[int, list[dict[str, Any]]] = {step: [] for step in steps}
    with (run_dir / SAMPLES).open("rb") as file:
        for text in file:
            if b'"id":"eval/' not in text:
                continue
            line = orjson.loads(text)
            if line["step"] in lines and line.get("verdict"):
                lines[line["step"]].append(line)
    return lines


def solved_by_turn(lines: Sequence[Mapping[str, Any]], turns: int) -> tuple[Solved, ...]:
    """Return which conversations are solved within 1, 2, ... turns; empty if no answer was judged.

    Answers on which the judge itself failed do not count. A conversation of only such answers is left out.
    """
    found = []
    for turn in range(1, turns + 1):
        groups: dict[str, list[bool]] = defaultdict(list)
        for line in lines:
            outcomes = [answer["verdict"]["outcome"] for answer in line.get("turns", [line])[:turn]]
            if any(outcome != "harness_failed" for outcome in outcomes):
                groups[line["task"]].append("correct" in outcomes)
        if groups:
            found.append(Solved(groups))
    return tuple(found)


def example(lines: Sequence[Mapping[str, Any]], before: Solved | None) -> Mapping[str, Any]:
    """Return the shortest correct answer to a task that was not solved before, or else the shortest correct answer.

    Empty if there is no correct answer.
    """
    correct = [line for line in lines if line["verdict"]["outcome"] == "correct"]
    known = {} if before is None else before.by_task
    new = [line for line in correct if not any(known.get(line["task"], ()))]
    return min(new or correct, key=lambda line: (len(line["completion"]), line["id"]), default={})


def sparkline(values: Sequence[float], most: int = 60) -> str:
    """Return one bar for each value between 0 and 1. More than ``most`` values are averaged over neighbours.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    parts = np.array_split(np.array(values), min(most, len(values)))
    return "".join(BARS[min(int(float(part.mean()) * len(BARS)), len(BARS) - 1)] for part in parts)


def _interval(numerators: Sequence[float], denominators: Sequence[float]) -> Bounds:
    return intervals(np.array(numerators)[:, None], np.array(denominators, dtype=float)[:, None])[0]


def _rate(known: Solved | None) -> tuple[float, Bounds] | None:
    return None if known is None else (known.rate, known.interval())


def _percent(value: float, bounds: Bounds, sign: str = "") -> str:
    between = "" if bounds is None else f" (95% interval {bounds[0]:{sign}.1%} to {bounds[1]:{sign}.1%})"
    return f"{value:{sign}.1%}{between}"
