"""Timing contenders side by side on one GPU, for the benchmarks in this folder.

A time is that of a device kept busy, as in training: each contender runs without pause until the card has settled in
its clocks (--settle seconds; a card at its power limit is slower than a cold one), then --runs calls (at least 3, and
no more than take two seconds) are timed by CUDA events. Contenders take turns, --rounds times, and the median, 20% and
80% quantiles are over all rounds. `peak_mib` is what one call allocates beyond its inputs, less what it returns.
`first_call_s` is the first call's wall-clock time, compilation included. A contender that fails is a row with the error
in the place of its times.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

Run = Callable[[], object]
MIB = 2.0**20


@dataclass
class Contender:
    """One way to do the work. ``run`` does it once; ``prepare``, untimed, comes before it."""

    name: str
    version: str
    run: Run
    prepare: Run | None = None
    errors: Callable[[], Mapping[str, float]] | None = None
    output_bytes: int = 0
    columns: dict[str, Any] = field(default_factory=dict)


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_alone(package: str, path: str, *stubs: str) -> ModuleType | None:
    """One file of an installed package, without the package's own imports; ``stubs`` are contexts that do nothing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    alone = f"{package}_alone"
    for name in (alone, f"{alone}.kernels", f"{alone}.trainer", f"{alone}.trainer.utils"):
        sys.modules.setdefault(name, ModuleType(name)).__path__ = []
    for stub in stubs:
        setattr(sys.modules[f"{alone}.trainer.utils"], stub, _nothing)
    name = f"{alone}.kernels.{Path(path).stem}"
    file_spec = importlib.util.spec_from_file_location(name, Path(spec.submodule_search_locations[0]) / path)
    assert file_spec is not None
    assert file_spec.loader is not None
    module = importlib.util.module_from_spec(file_spec)
    sys.modules[name] = module
    file_spec.loader.exec_module(module)
    return module


class _nothing:
    def __init__(self, *arguments: object) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


def timed(run: Run, runs: int, settle: float, prepare: Run | None) -> list[float]:
    """Milliseconds of each of ``runs`` calls, the device never idle in between."""

    def batch(count: int) -> list[float]:
        events = []
        for _ in range(count):
            if prepare:
                prepare()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    start = time.perf_counter()
    first = batch(1)[0]
    while time.perf_counter() - start < settle:
        batch(5)
    return batch(max(3, min(runs, round(2000 / max(first, 1e-3)))))


def compare(
    contenders: Iterable[Contender], arguments: argparse.Namespace, more: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A row for each contender; those with errors() have been checked before they are timed."""
    rows, alive = [], []
    for contender in contenders:
        row = {"implementation": contender.name, "version": contender.version, **more, **contender.columns}
        rows.append(row)
        start = time.perf_counter()
        try:
            if contender.prepare:
                contender.prepare()
            contender.run()
            torch.cuda.synchronize()
            row["first_call_s"] = f"{time.perf_counter() - start:.2f}"
            if contender.prepare:
                contender.prepare()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            contender.run()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before - contender.output_bytes
            row["peak_mib"] = f"{max(0, peak) / MIB:.0f}"
            if contender.errors:
                row.update({name: f"{value:.2g}" for name, value in contender.errors().items()})
            alive.append((contender, row, []))
        except Exception as error:  # a rival's failure is a result
            row["failure"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            print(contender.name, row["failure"], file=sys.stderr, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    for _ in range(arguments.rounds):
        for contender, row, times in alive:
            if "failure" in row:
                continue
            try:
                times += timed(contender.run, arguments.runs, arguments.settle, contender.prepare)
            except Exception as error:
                row["failure"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    for _, row, times in alive:
        if "failure" not in row:
            times.sort()
            for name, share in {"median_ms": 0.5, "p20_ms": 0.2, "p80_ms": 0.8}.items():
                row[name] = f"{times[int(share * len(times))]:.4g}"
    return rows


def median_of(rows: list[dict[str, Any]], name: str) -> float:
    return next(float(row["median_ms"]) for row in rows if row["implementation"] == name)


def parser_for(document: str | None, out: str, runs: int = 20) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--settle", type=float, default=0.3)
    parser.add_argument("--shapes", choices=("reference", "sweep"), default="reference")
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT"), help="where there is no git to ask")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / out)
    return parser


def about_this_run(arguments: argparse.Namespace) -> dict[str, str]:
    commit = arguments.commit
    if not commit:
        asked = ["git", "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.split("\n")[0]
    command = " ".join(["python", "benchmarks/" + Path(sys.argv[0]).name, *_without_commit(sys.argv[1:])])
    return {
        "device": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "triton": version_of("triton") or "",
        "commit": commit or "unknown",
        "command": command,
    }


def _without_commit(words: list[str]) -> list[str]:
    if "--commit" not in words:
        return words
    place = words.index("--commit")
    return words[:place] + words[place + 2 :]


def write(path: Path, rows: list[dict[str, Any]], last: Iterable[str] = ()) -> None:
    """Rows may have different columns; those named in ``last`` stand at the end."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [name for name in columns if name not in last] + [name for name in last if name in columns]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)


def show(row: Mapping[str, Any]) -> None:
    hidden = {"device", "driver", "torch", "triton", "commit", "command"}
    print(*(f"{name}={value}" for name, value in row.items() if name not in hidden), flush=True)


def shape(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values)
