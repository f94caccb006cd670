"""The logs of a run: always the terminal, JSON lines and TensorBoard, other trackers on request."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import orjson
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from kernel_coder.run.config import RunnableConfig
from kernel_coder.run.errors import UsageError
from kernel_coder.run.files import CONFIG, METRICS, SAMPLES, SUMMARY

__all__ = ["CONFIG", "METRICS", "SAMPLES", "SUMMARY", "NoLog", "RunLog", "cut_after", "find_trackers", "start_trackers"]


PHASES = {
    "data": "reading data",
    "rollout": "sampling answers",
    "judge": "judging answers",
    "reward": "computing rewards",
    "logprobs": "scoring the answers' tokens",
    "update": "updating the weights",
    "eval": "answering held-out tasks",
}
"""The text that a terminal shows during each phase of a step."""


class RunLog:
    """Writes the metrics and samples of one run into its folder and prints a line for each step.

    Args:
        run_dir: the folder, which exists.
        config: of the run; its resolved form becomes ``config.yaml``.
        step: the last finished step. Lines of later steps, left by a killed run, are removed.
        total: number of steps of the whole run.
        shown: the metrics that are printed, and the label of each. ``metrics.jsonl`` has all metrics.
        stream: where to print; standard output by default.
    """

    def __init__(
        self,
        run_dir: Path,
        config: RunnableConfig,
        step: int,
        *,
        total: int,
        shown: Mapping[str, str],
        stream: IO[str] | None = None,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run_dir = run_dir
        self.config = config
        self.total = total
        self.shown = shown
        self.every = config.run.logging_steps
        self.console = Console(file=stream or sys.stdout, force_jupyter=False)  # plain lines in notebooks, too
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        kept = step or -1  # a run that starts again from step 0 also repeats the evaluation before its first step
        for record in cut_after(run_dir / METRICS, kept):
            self._remember(record)
        cut_after(run_dir / SAMPLES, kept)
        (run_dir / CONFIG).write_text(config.to_yaml(), encoding="utf-8")
        self._metrics = (run_dir / METRICS).open("ab")
        self._samples = (run_dir / SAMPLES).open("ab")
        self._board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1 if step else None)
        self._trackers = start_trackers(config, run_dir)
        self._progress: Progress | None = None
        if self.console.file.isatty():  # not is_terminal: Jupyter sets FORCE_COLOR, and rich takes that for a terminal
            columns = (
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            texts = TextColumn("{task.fields[doing]}"), TextColumn("{task.fields[shown]}")
            self._progress = Progress(*columns, *texts, console=self.console)
            self._bar = self._progress.add_task("train", total=self.total, completed=step, shown="", doing="")
            self._progress.start()

    def message(self, text: str) -> None:
        """Prints a line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def doing(self, phase: str) -> None:
        """Shows the present phase on a terminal. If the output is no terminal, nothing is printed between steps."""
        if self._progress is not None:
            self._progress.update(self._bar, doing=PHASES.get(phase, phase))

    def judged(self, done: int, asked: int) -> None:
        """Shows on a terminal how many of the present answers are judged. May be called from any thread."""
        if self._progress is not None:
            self._progress.update(self._bar, doing=f"{done} of {asked} answers judged")

    def step(self, step: int, metrics: Mapping[str, float], samples: Iterable[Mapping[str, Any]] = ()) -> None:
        """Logs the metrics and the samples of one finished step. Both are in their files when this returns."""
        record = {"step": step, **metrics}
        for sample in samples:
            self._samples.write(orjson.dumps(sample, option=orjson.OPT_APPEND_NEWLINE))
        self._samples.flush()
        self._metrics.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        self._metrics.flush()
        self._remember(record)
        for name, value in metrics.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, step)
        for tracker in self._trackers:
            tracker.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)
        shown = "  ".join(
            f"{label} {_short(metrics[name])}" for name, label in self.shown.items() if metrics.get(name) is not None
        )
        if self._progress is not None:
            self._progress.update(self._bar, completed=step, shown=shown)
        elif step % self.every == 0 or step == self.total:
            self.message(f"step {step}/{self.total}  {shown}")

    def finish(self, summary: Mapping[str, Any], words: Iterable[str] = ()) -> Path:
        """Writes ``summary.json`` and returns its path.

        Prints a table of the first and last step, then the given lines, then the command to type next.
        """
        self.close()
        table = Table("metric", "first step", "last step", title=f"{summary['status']}: {summary['steps']} steps")
        for name, label in self.shown.items():
            if name in self.last:
                table.add_row(label, _short(self.first[name]), _short(self.last[name]))
        self.console.print(table)
        for line in words:
            self.message(line)
        path = (self.run_dir / SUMMARY).resolve()
        path.write_bytes(orjson.dumps(dict(summary), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        self.message(f"all numbers: {path}")
        command = type(self.config).__name__.removesuffix("Config").lower()
        is_over = summary["status"] == "finished"
        self.message(f"next: kernel-coder {'report' if is_over else f'{command} --resume'} {self.run_dir}")
        return path

    def close(self) -> None:
        """Ends the progress bar and closes every file. Calling it again does nothing."""
        if self._progress is not None:
            self._progress.stop()
        self._metrics.close()
        self._samples.close()
        self._board.close()
        for tracker in self._trackers:
            tracker.finish()
        self._trackers = []

    def first_and_last(self, names: Iterable[str]) -> dict[str, float | None]:
        """Return ``<name>_first`` and ``<name>_last`` of these shown metrics; None if no step had a finite value."""
        keys = {name: name.replace("/", "_") for name in names}
        return {
            **{f"{key}_first": self.first.get(name) for name, key in keys.items()},
            **{f"{key}_last": self.last.get(name) for name, key in keys.items()},
        }

    def _remember(self, record: Mapping[str, Any]) -> None:
        for name in self.shown:
            if record.get(name) is not None and math.isfinite(record[name]):
                self.first.setdefault(name, record[name])
                self.last[name] = record[name]


class NoLog(RunLog):
    """The log of a rank that logs nothing, because rank 0 does."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def message(self, text: str) -> None:
        """Prints nothing."""

    def doing(self, phase: str) -> None:
        """Shows nothing."""

    def judged(self, done: int, asked: int) -> None:
        """Shows nothing."""

    def step(self, step: int, metrics: Mapping[str, float], samples: Iterable[Mapping[str, Any]] = ()) -> None:
        """Logs nothing."""

    def finish(self, summary: Mapping[str, Any], words: Iterable[str] = ()) -> Path:
        """Writes nothing and returns the path of rank 0's summary."""
        return (self.run_dir / SUMMARY).resolve()

    def close(self) -> None:
        """Does nothing."""

    def first_and_last(self, names: Iterable[str]) -> dict[str, float | None]:
        """Return nothing, because this rank has no metrics."""
        return {}


def cut_after(path: Path, step: int) -> list[dict[str, Any]]:
    """Removes the lines of later steps, and a last line that a crash left incomplete. Returns the lines that stay."""
    kept: list[bytes] = []
    records: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            break
        if record["step"] > step or not line.endswith(b"\n"):
            break
        kept.append(line)
        records.append(record)
    if path.exists():
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(b"".join(kept))
        temporary.replace(path)
    return records


def find_trackers(names: Sequence[str]) -> list[Any]:
    """Return the tracker classes that ``run.report_to`` names. TensorBoard is skipped: :class:`RunLog` writes it
    itself.

    Raises:
        UsageError: accelerate does not know a name, or its package is not installed.
    """
    wanted = [name for name in names if name not in ("tensorboard", "none")]
    if not wanted:
        return []
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known = sorted(map(str, LOGGER_TYPE_TO_CLASS))
    available = set(map(str, get_available_trackers()))
    for name in wanted:
        if name not in known:
            raise UsageError(f"run.report_to names an unknown tracker {name}; accelerate knows {', '.join(known)}")
        if name not in available:
            raise UsageError(f"run.report_to names {name}, which is not installed: pip install {name}")
    return [LOGGER_TYPE_TO_CLASS[name] for name in wanted]


def start_trackers(config: RunnableConfig, run_dir: Path) -> list[Any]:
    """Starts the trackers of ``run.report_to`` and gives each the config."""
    kinds = find_trackers(config.run.report_to)
    if kinds:
        from accelerate import PartialState

        PartialState()  # accelerate's trackers read the number of their process from it
    trackers = []
    for kind in kinds:
        arguments = [str(run_dir)] if kind.requires_logging_directory else []
        tracker = kind(config.run.project, *arguments)
        tracker.start()
        tracker.store_init_configuration(yaml.safe_load(config.to_yaml()))
        trackers.append(tracker)
    return trackers


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"
