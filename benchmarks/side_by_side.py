"""Timing contenders side by side in one process, for the benchmarks in this folder.

The device is kept busy, as in training. Each contender runs without a pause for --settle seconds, until the GPU's clock
rates have settled: a GPU at its power limit is slower than a cold one. Then --runs calls are timed by CUDA events. The
contenders take turns, --rounds times. The median and the 20% and 80% quantiles are over all rounds. A slow contender
runs less often (--limit seconds a turn). `peak_mib` is the memory that one call allocates, without its results.
`first_call_s` is the wall-clock time of the first call. It includes compilation, unless an earlier contender has
compiled the same code.

Each contender is checked before it is timed: its errors against float64 must be within TOLERANCE. That distinguishes a
different loss from the rounding of bfloat16; the error columns say how exact a contender is. A contender that fails has
a row with the error in the column `failure` and no times. --quick measures only what the project's targets need.
--shapes small has shapes for a CPU, to check that everything runs; its rows are written only with --out.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import importlib.metadata
import importlib.util
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Run = Callable[[], object]
Row = dict[str, Any]
MIB = 2.0**20
#: Largest errors, as relative norms. Other errors are only reported. A log-sum-exp in bfloat16 is off by 0.03 nats.
TOLERANCE = {"loss": 0.01, "logprobs": 0.01, "entropy": 0.02, "gradient": 0.1, "grad_hidden": 0.1, "grad_weight": 0.1}
#: Columns that are equal in rows which differ only in the share of tokens that carry a gradient.
SAME = ("work", "implementation", "tokens", "vocab", "hidden", "policy", "logits_dtype", "weight_grad_dtype")


@dataclass
class Contender:
    """One way to do the work. ``run`` does it once. ``prepare`` runs before it and is not timed."""

    name: str
    version: str
    run: Run
    prepare: Run | None = None
    errors: Callable[[], Mapping[str, float]] | None = None
    output_bytes: int = 0
    kind: str = "rival"  # or "ours", or "floor"
    columns: Mapping[str, Any] = field(default_factory=dict)


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def module_alone(package: str, path: str, *stubs: str) -> ModuleType:
    """Imports one file of a package without the package's other imports. ``stubs`` names contexts that do nothing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}")
    alone = f"{package}_alone"
    for name in (alone, f"{alone}.kernels", f"{alone}.trainer", f"{alone}.trainer.utils"):
        sys.modules.setdefault(name, ModuleType(name)).__path__ = []
    for stub in stubs:
        setattr(sys.modules[f"{alone}.trainer.utils"], stub, _Nothing)
    name = f"{alone}.kernels.{Path(path).stem}"
    file_spec = importlib.util.spec_from_file_location(name, Path(spec.submodule_search_locations[0]) / path)
    assert file_spec is not None
    assert file_spec.loader is not None
    module = importlib.util.module_from_spec(file_spec)
    sys.modules[name] = module
    file_spec.loader.exec_module(module)
    return module


class _Nothing:
    def __init__(self, *arguments: object) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


def timed(contender: Contender, arguments: argparse.Namespace) -> list[float]:
    """Returns the milliseconds of each call. The device is never idle between calls."""

    def on_gpu(count: int) -> list[float]:
        events = []
        for _ in range(count):
            if contender.prepare:
                contender.prepare()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            contender.run()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    def on_cpu(count: int) -> list[float]:
        times = []
        for _ in range(count):
            if contender.prepare:
                contender.prepare()
            start = time.perf_counter()
            contender.run()
            times.append(1e3 * (time.perf_counter() - start))
        return times

    batch = on_gpu if arguments.device == "cuda" else on_cpu
    start = time.perf_counter()
    longest = max(batch(1)[0], 1e-3)
    while time.perf_counter() - start < arguments.settle:
        batch(max(1, min(5, int(100 / longest))))
    return batch(max(3, min(arguments.runs, int(1e3 * arguments.limit / longest))))


def check(errors: Mapping[str, float]) -> None:
    wrong = {name: value for name, value in errors.items() if not value <= TOLERANCE.get(name, math.inf)}
    if wrong:
        raise AssertionError(f"computes something else: {', '.join(f'{n} off by {v:.2g}' for n, v in wrong.items())}")


def failure(error: Exception) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def wanted(contender: Contender, arguments: argparse.Namespace) -> bool:
    if contender.kind != "rival" or arguments.rivals == "all":
        return True
    return any(part and part.lower() in contender.name.lower() for part in arguments.rivals.split(","))


def compare(contenders: Iterable[Contender], arguments: argparse.Namespace, more: Mapping[str, Any]) -> list[Row]:
    """Returns a row for each contender. Contenders with ``errors`` are checked before they are timed."""
    rows: list[Row] = []
    alive: list[tuple[Contender, Row, list[float]]] = []
    cuda = arguments.device == "cuda"

    def once(contender: Contender) -> float:
        if contender.prepare:
            contender.prepare()
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        contender.run()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for contender in contenders:
        if not wanted(contender, arguments):
            continue
        row = {**more, "kind": contender.kind, "implementation": contender.name, "version": contender.version}
        row.update(contender.columns)
        rows.append(row)
        try:
            row["first_call_s"] = f"{once(contender):.2f}"
            if contender.prepare:
                contender.prepare()
            before = torch.cuda.memory_allocated() if cuda else 0
            once(contender)
            if cuda:
                peak = torch.cuda.max_memory_allocated() - before - contender.output_bytes
                row["peak_mib"] = f"{max(0, peak) / MIB:.0f}"
            if contender.errors:
                errors = contender.errors()
                row.update({f"error_{name}": f"{value:.2g}" for name, value in errors.items()})
                check(errors)
            alive.append((contender, row, []))
        except Exception as error:  # a rival's failure is a result
            row["failure"] = failure(error)
            print(contender.name, row["failure"], file=sys.stderr, flush=True)
        free(cuda)
    for _ in range(arguments.rounds):
        for contender, row, times in alive:
            if "failure" in row:
                continue
            try:
                times += timed(contender, arguments)
            except Exception as error:
                row["failure"] = failure(error)
    for _, row, times in alive:
        if "failure" not in row:
            times.sort()
            for name, share in {"median_ms": 0.5, "p20_ms": 0.2, "p80_ms": 0.8}.items():
                row[name] = f"{times[int(share * len(times))]:.4g}"
    return rows


def free(cuda: bool) -> None:
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()


def median_of(rows: list[Row], name: str) -> float:
    """Returns the median, or NaN if there are no values."""
    found = (row["median_ms"] for row in rows if row["implementation"] == name and "median_ms" in row)
    return float(next(found, math.nan))


def varied(point: Mapping[str, Any], changes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the point itself, and then a copy for each value of each name, with only that value changed.

    >>> varied({"a": 1, "b": 2}, {"a": (5, 6)})
    [{'a': 1, 'b': 2}, {'a': 5, 'b': 2}, {'a': 6, 'b': 2}]
    """
    return [dict(point), *({**point, name: value} for name, values in changes.items() for value in values)]


def parser_for(document: str | None, runs: int = 20) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", choices=("small", "reference", "sweep"))
    parser.add_argument("--quick", action="store_true", help="what the project's targets are about, nothing else")
    parser.add_argument("--rivals", default="all", help="all, none, or parts of their names: Liger,TRL")
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--settle", type=float, default=0.3, help="seconds")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds")
    parser.add_argument("--commit", default=os.environ.get("KC_COMMIT"), help="where there is no git to ask")
    parser.add_argument("--out", type=Path, help="a .csv file")
    return parser


def measure(
    stem: str,
    arguments: argparse.Namespace,
    points: Iterable[Mapping[str, Any]],
    rows_of: Callable[[Mapping[str, Any]], list[Row]],
) -> None:
    """Measures all points and writes their rows after each point. A point that fails has a row, too."""
    out = arguments.out
    if out is None and arguments.shapes != "small":
        kind = "quick" if arguments.quick else "sweep" if arguments.shapes == "sweep" else arguments.device
        out = Path(__file__).parent / "results" / f"{stem}_{kind}.csv"
    about, rows = about_this_run(arguments), []
    for point in points:
        try:
            found = rows_of(point)
        except Exception as error:
            found = [{**point, "failure": failure(error)}]
        rows += [{**row, **about} for row in found]
        share_of_full(rows)
        for row in rows[-len(found) :]:
            print(*(f"{name}={value}" for name, value in row.items() if name not in about), flush=True)
        free(arguments.device == "cuda")
        if out is not None:
            write(out, rows, last=("note", "failure", *about))


def share_of_full(rows: list[Row]) -> None:
    """Adds `of_full`: the time divided by that of the same work with a gradient on every token."""

    def key(row: Row) -> tuple[object, ...]:
        same = {**row, "implementation": str(row.get("implementation", "")).partition(", zero advantages skipped")[0]}
        return tuple(same.get(name) for name in (*SAME, "chunk_rows"))

    def is_full(row: Row) -> bool:
        return not row.get("masked") and not row.get("zero_advantage")

    rows = [row for row in rows if "median_ms" in row and row["kind"] != "floor"]
    full = {key(row): float(row["median_ms"]) for row in rows if is_full(row)}
    for row in rows:
        if not is_full(row) and key(row) in full:
            row["of_full"] = f"{float(row['median_ms']) / full[key(row)]:.3f}"


def about_this_run(arguments: argparse.Namespace) -> dict[str, str]:
    folder = Path(__file__).resolve().parent
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(folder) if script.is_relative_to(folder) else script.name
    command = " ".join(["python", f"benchmarks/{name}", *words_to_repeat(sys.argv[1:])])
    cuda = arguments.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "driver": _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) if cuda else "",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "triton": version_of("triton"),
        "commit": commit_of(arguments),
        "command": command,
    }


def commit_of(arguments: argparse.Namespace) -> str:
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    return arguments.commit or _output(asked, cwd=Path(__file__).parent) or "unknown"


def _output(command: list[str], cwd: Path | None = None) -> str:
    try:
        run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return run.stdout.partition("\n")[0].strip()


def words_to_repeat(words: list[str]) -> list[str]:
    """Returns the command line without the commit, which has a column of its own, and without the output file."""
    kept, skip = [], False
    for word in words:
        if not skip and word not in ("--commit", "--out") and not word.startswith(("--commit=", "--out=")):
            kept.append(word)
        skip = word in ("--commit", "--out")
    return kept


def write(path: Path, rows: list[Row], last: Iterable[str] = ()) -> None:
    """Writes the rows, which may have different columns. The columns in ``last`` come last."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [name for name in columns if name not in last] + [name for name in last if name in columns]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
