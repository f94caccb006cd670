"""Checks which tasks can be judged on this machine, and judges each reference as its own candidate.

    python benchmarks/judge/bench_admission.py PATH/TO/KernelBench/level1 PATH/TO/level2   # results/admission_cuda.csv
    python benchmarks/judge/bench_admission.py --pack benchmarks/results/admission_cuda.csv     # the packaged list

A task is admitted if candidates that compute nothing fail on it and its reference passes. The speedup of a reference
over itself is 1, so an interval without 1 is wrong. Tasks that already have a row are skipped: a run that ended early
(also by --seconds) is continued by the same command. The last line summarises the file.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.judge.admission_list import PACKAGED, entry_of, listing
from kernel_coder.tasks import Task

RESULTS = Path(__file__).parents[1] / "results"
COLUMNS = ["task", "sha256", "admitted", "reason", "families", "hidden_sizes", "speedup_low", "speedup"]
COLUMNS += ["speedup_high", "runtime_ms", "pairs", "seconds", "device", "torch", "commit", "command"]


def tasks_in(folder: Path) -> list[Task]:
    """The tasks in a folder, ordered by the number in their names, as KernelBench's have."""

    def place(file: Path) -> tuple[int, str]:
        number = file.stem.partition("_")[0]
        return int(number) if number.isdigit() else 0, file.stem

    files = sorted(folder.glob("*.py"), key=place)
    if not files:
        raise SystemExit(f"each folder must have references, *.py files; got {folder}")
    return [Task(id=f"{folder.name}/{file.stem}", source="folder", reference=file.read_text()) for file in files]


def row_of(judge: Judge, task: Task) -> tuple[dict[str, object], dict[str, object]]:
    """The row of a task, and the times of its pairs."""
    started = time.perf_counter()
    found = judge.admit(task)
    verdict = found.verdict
    row: dict[str, object] = {
        "task": found.task,
        "sha256": found.task_hash,
        "admitted": found.admitted,
        "reason": found.reason or "",
        "families": " ".join(found.families),
        "hidden_sizes": found.hidden_sizes or "",
        "seconds": round(time.perf_counter() - started, 2),
    }
    if verdict is not None and verdict.speedup is not None:
        row |= {
            name: round(float(getattr(verdict, name)), 5)
            for name in ("speedup_low", "speedup", "speedup_high", "runtime_ms")
        }
        row["pairs"] = len(verdict.runtimes_ms)
        both = {"reference_ms": verdict.reference_runtimes_ms, "candidate_ms": verdict.runtimes_ms}
        times: dict[str, object] = {name: [round(one, 5) for one in some] for name, some in both.items()}
        return row, times | {"stage_s": {name: round(one, 3) for name, one in verdict.stage_s.items()}}
    return row, {}


def rows_of(out: Path) -> list[dict[str, str]]:
    if not out.exists():
        return []
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def summary(rows: list[dict[str, str]]) -> str:
    timed = [row for row in rows if row["speedup"]]
    holds = sum(float(row["speedup_low"]) <= 1 <= float(row["speedup_high"]) for row in timed)
    longer = [float(row["speedup"]) for row in timed if float(row["runtime_ms"]) > 0.05]
    close = sum(0.97 <= one <= 1.03 for one in longer)
    admitted = sum(row["admitted"] == "True" for row in rows)
    return (
        f"{admitted} of {len(rows)} admitted; the interval holds 1 for {holds} of {len(timed)} timed; "
        f"{close} of {len(longer)} that take over 50 us are within 0.97 to 1.03"
    )


def pack(rows: Path, out: Path) -> None:
    """Writes the packaged list: names, hashes and reasons, but not the tasks' sources."""
    entries = [entry_of(row) for row in rows_of(rows)]
    out.write_text(listing(entries), encoding="utf-8")
    refused = sum(not entry.admitted for entry in entries)
    print(f"{out}: {len(entries)} tasks, {refused} of them not admitted")


def claimed(folder: Path | None, task: Task) -> bool:
    """Whether this process judges the task: the first process that claims it does."""
    if folder is None:
        return True
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / task.id.replace("/", "_")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of references")
    parser.add_argument("--pack", type=Path, metavar="CSV", help="write the packaged list from these rows, or to --out")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--workers", type=int, default=2, help="number of tasks at a time; the timing itself is sequential"
    )
    parser.add_argument("--claims", type=Path, help="folder in which several processes, one for each GPU, claim tasks")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no task after this time")
    parser.add_argument("--timeout", type=float, default=100.0, help="time limit of a task, in seconds")
    parser.add_argument("--out", type=Path, help="default: results/admission_DEVICE.csv")
    parser.add_argument("--times", type=Path, help="JSON lines with the milliseconds of every pair and of the stages")
    arguments = parser.parse_args()
    if bool(arguments.folders) == bool(arguments.pack):
        parser.error("give folders of references, or --pack and a file of rows")
    if arguments.pack:
        pack(arguments.pack, arguments.out or PACKAGED)
        return
    out = arguments.out or RESULTS / f"admission_{arguments.device}.csv"
    known = rows_of(out)
    done = {row["sha256"] for row in known}
    facts = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
        "command": " ".join(
            ["python benchmarks/judge/bench_admission.py", *(folder.name for folder in arguments.folders)]
        ),
    }
    config = JudgeConfig(workers=arguments.workers, timing_s=2.0, timeout_s=arguments.timeout)
    until = time.monotonic() + arguments.seconds
    with out.open("a", newline="") as file, Judge(arguments.device, "torch", config=config) as judge:
        writer = csv.DictWriter(file, COLUMNS)
        if not known:
            writer.writeheader()

        def one(task: Task) -> tuple[dict[str, object], dict[str, object]] | None:
            if time.monotonic() > until or not claimed(arguments.claims, task):
                return None
            return row_of(judge, task)

        asked = [task for folder in arguments.folders for task in tasks_in(folder)]
        wanted = [task for task in asked if hashlib.sha256(task.reference.encode()).hexdigest() not in done]
        with ThreadPoolExecutor(arguments.workers) as pool:
            for found in pool.map(one, wanted):
                if found is None:
                    continue
                row, times = found
                if row["admitted"] is None:  # the judge failed; the next run tries this task again
                    print(row["task"], "not known:", row["reason"], flush=True)
                    continue
                if arguments.times and times:
                    with arguments.times.open("a") as lines:
                        lines.write(json.dumps({"task": row["task"]} | times) + "\n")
                writer.writerow(row | facts)
                file.flush()
                print(row["task"], row["admitted"], row.get("speedup", ""), row["reason"], flush=True)
    print(summary(rows_of(out)))


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
