"""Runs whole commands for the benchmarks in this folder, several at a time, and gives a row as soon as one ends.

A trial is a process that a user could start. --parallel trials run at the same time, each on --cores cores of its own
if there are enough. After --seconds, trials that still run are killed with their child processes, and have no row.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernel_coder

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""97.5% quantiles of Student's t for so many runs."""
POLL_S = 0.2


@dataclass(frozen=True)
class Trial:
    """A command and its working folder. Its output goes to ``log`` in that folder."""

    name: str
    command: Sequence[str]
    folder: Path
    fine: tuple[int, ...] = (0,)  # exit codes of a trial that ended well
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Running:
    trial: Trial
    process: subprocess.Popen[bytes]
    cores: list[int]
    began: float


def add_flags(parser: argparse.ArgumentParser, out: Path) -> None:
    """The flags that the benchmarks of whole commands share."""
    parser.add_argument("--parallel", type=int, default=1, help="trials at a time")
    parser.add_argument("--cores", type=int, default=2, help="of each trial")
    parser.add_argument("--seconds", type=float, default=3600.0, help="what still runs then is killed")
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT"), help="default: that of the checkout")
    parser.add_argument("--keep", type=Path, help="folder for the trials' own files; default: they are removed")
    parser.add_argument("--out", type=Path, default=out)


def run_all(
    trials: Sequence[Trial], *, parallel: int = 1, cores: int = 2, deadline: float = float("inf")
) -> Iterator[tuple[Trial, float]]:
    """Yields each trial with its seconds as soon as it has ended well. Prints a line for each other trial.

    ``deadline`` is a time of ``time.monotonic()``.
    """
    waiting, running = list(trials), list[_Running]()
    mine = sorted(os.sched_getaffinity(0))
    free = [mine[start : start + cores] for start in range(0, len(mine) - cores + 1, cores)][:parallel]
    if len(free) < parallel:
        free = [mine] * parallel  # there are too few cores, so trials share them
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and free:
                running.append(_start(waiting.pop(0), free.pop(0), mine))
            time.sleep(POLL_S)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                free.append(one.cores)
                if one.process.returncode in one.trial.fine:
                    yield one.trial, time.monotonic() - one.began
                else:
                    print(
                        f"{one.trial.name} failed with exit code {one.process.returncode}:\n{_end_of(one.trial)}",
                        flush=True,
                    )
    finally:
        _end([one.process for one in running])
        for trial in (*(one.trial for one in running), *waiting):
            print(f"{trial.name} did not come to its end", flush=True)


def _start(trial: Trial, cores: list[int], mine: Sequence[int]) -> _Running:
    trial.folder.mkdir(parents=True, exist_ok=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **trial.environment}
    os.sched_setaffinity(0, cores)  # processes that are started now inherit it
    try:
        with (trial.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                list(trial.command),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
    finally:
        os.sched_setaffinity(0, mine)
    return _Running(trial, process, cores, time.monotonic())


def _end(processes: Sequence[subprocess.Popen[bytes]], patience: float = 8.0) -> None:
    """Ends processes. SIGTERM comes first, so that they can end their own child processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        until = time.monotonic() + patience
        while time.monotonic() < until and any(process.poll() is None for process in processes):
            time.sleep(POLL_S)


def _end_of(trial: Trial, lines: int = 12) -> str:
    return "\n".join((trial.folder / "log").read_text(errors="replace").splitlines()[-lines:])


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Appends a row to a CSV file. If the file has other columns, the row goes to ``name-2.csv`` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, target = 1, path
    while target.exists() and next(csv.reader(target.read_text().splitlines()), []) != list(row):
        number += 1
        target = path.with_stem(f"{path.stem}-{number}")
    new = not target.exists()
    with target.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()})


def over_seeds(values: Sequence[float], sign: str = "+") -> str:
    """Returns the mean and, for several runs, the 95% interval of Student's t.

    >>> over_seeds([0.1, 0.2, 0.3])
    '+0.200 (95% interval -0.048 to +0.448, 3 runs)'
    >>> over_seeds([0.1], sign="")
    '0.100 (1 run)'
    """
    mean, count = statistics.fmean(values), len(values)
    if count not in STUDENT:
        return f"{mean:{sign}.3f} ({count} run{'s' if count > 1 else ''})"
    half = STUDENT[count] * statistics.stdev(values) / count**0.5
    return f"{mean:{sign}.3f} (95% interval {mean - half:{sign}.3f} to {mean + half:{sign}.3f}, {count} runs)"


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or f"kernel_coder {kernel_coder.__version__}"


def fresh(folder: Path) -> Path:
    """Empties a folder and returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
