"""Reads a run folder in any state: while the run writes to it, after it was killed, and after it was resumed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml

from kernel_coder.report.samples import Chooser, Chosen
from kernel_coder.run.errors import UsageError
from kernel_coder.run.logs import CONFIG, METRICS, SAMPLES, SUMMARY

ENDED_AFTER_S = 600
"""Time without a write, in seconds, after which a run without a summary counts as ended; a step rarely takes longer."""

Kind = Literal["reinforcement", "supervised"]
Status = Literal["finished", "stopped", "running", "ended"]


@dataclass(frozen=True)
class Curve:
    """The values of one metric, at the steps where it was measured."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def first(self) -> float:
        return self.values[0]

    @property
    def last(self) -> float:
        return self.values[-1]


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    path: Path
    config: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]  # one record for each step, in order
    summary: Mapping[str, Any] | None  # None if it is missing or older than the last step
    samples: Chosen
    starts: int  # number of times that the run was started or resumed: its number of TensorBoard files
    unreadable: int  # number of lines that could not be read
    written_at: float = field(default_factory=time.time)

    @property
    def kind(self) -> Kind:
        return "reinforcement" if "rollout" in self.config or self.curve("reward") is not None else "supervised"

    @property
    def status(self) -> Status:
        if self.summary is not None:
            return "finished" if self.summary.get("status") == "finished" else "stopped"
        return "running" if time.time() - self.written_at < ENDED_AFTER_S else "ended"

    @property
    def last_step(self) -> int:
        return self.metrics[-1]["step"] if self.metrics else 0

    @property
    def planned_steps(self) -> int | None:
        """The config's number of steps; None if it is given by epochs."""
        steps = self.setting("run", "max_steps")
        return steps if isinstance(steps, int) and steps > 0 else None

    @property
    def seconds(self) -> float:
        """The total time of all steps, in seconds."""
        found = self.curve("time/step_s")
        return sum(found.values) if found else 0.0

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def model(self) -> str:
        return str(self.setting("model", "name_or_path") or "an unnamed model")

    def setting(self, *names: str) -> Any:
        """Return a value of the config by its path; None if it is missing."""
        value: Any = self.config
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """The curves of all metrics with at least one finite value."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        for record in self.metrics:
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                    number = float(value)
                    if math.isfinite(number):
                        steps, values = found.setdefault(name, ([], []))
                        steps.append(record["step"])
                        values.append(number)
        return {name: Curve(name, tuple(steps), tuple(values)) for name, (steps, values) in found.items()}

    def curve(self, name: str) -> Curve | None:
        return self.curves.get(name)


def read_run(path: Path, samples: int) -> Run:
    """Reads the run in a folder, with at most ``samples`` of its answers.

    Raises:
        UsageError: the path is not a folder or not a run.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder")
    if not (path / METRICS).is_file():
        raise UsageError(f"{path} is not a run: it has no {METRICS}{_hint(path)}")
    unreadable = 0
    metrics: list[Mapping[str, Any]] = []
    for record in read_lines(path / METRICS):
        if record is None:
            unreadable += 1
            continue
        while metrics and metrics[-1]["step"] >= record["step"]:  # a resume from a checkpoint repeated these steps
            metrics.pop()
        metrics.append(record)
    chooser = Chooser(samples)
    for record in read_lines(path / SAMPLES):
        if record is None:
            unreadable += 1
        else:
            chooser.see(record)
    last = metrics[-1]["step"] if metrics else 0
    return Run(
        path=path,
        config=_config(path / CONFIG),
        metrics=tuple(metrics),
        summary=_summary(path / SUMMARY, last),
        samples=chooser.choose(),
        starts=len(list((path / "tensorboard").glob("events.out.tfevents.*"))),
        unreadable=unreadable,
        written_at=max((path / name).stat().st_mtime for name in (METRICS, SAMPLES) if (path / name).exists()),
    )


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the records of a JSONL file, and None for each line that cannot be read.

    A last line without a line end is still being written and is skipped. A missing file has no lines.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            record = _loads(line)
            step = record.get("step") if isinstance(record, dict) else None
            yield record if isinstance(step, int) and not isinstance(step, bool) else None


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:  # json accepts NaN, long numbers and, with "replace", broken characters; orjson does not
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _config(path: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def _summary(path: Path, last_step: int) -> Mapping[str, Any] | None:
    """Return the summary; None if the run has continued since."""
    try:
        summary = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    steps = summary.get("steps") if isinstance(summary, dict) else None
    return summary if isinstance(steps, int) and steps >= last_step else None


def _hint(path: Path) -> str:
    if (path / "verdicts.jsonl").exists():
        return "; it is an evaluation, which has its own report.html"
    inside = sorted(child.name for child in path.iterdir() if (child / METRICS).is_file())
    if inside:
        return f"; did you mean one of the runs in it: {', '.join(inside[:5])}?"
    return ""
