"""Measures how long the driver needs to create CUDA contexts, which limits the rate of any judge.

    python benchmarks/judge/bench_contexts.py                                   # results/contexts_cuda.csv
    python benchmarks/judge/bench_contexts.py --at-a-time 1 4 12 --set "" CUDA_DEVICE_MAX_CONNECTIONS=1

Each process initialises the driver, creates the GPU's primary context, allocates memory and exits; several run at a
time. `seconds` is the wall time divided by the number of processes; the other columns are medians over processes. Each
word of --set holds the environment variables of one run, separated by commas. The settings alternate, so that other
load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"

SETTINGS = (
    "",
    "CUDA_DEVICE_MAX_CONNECTIONS=1",
    "CUDA_SCALE_LAUNCH_QUEUES=0.25x",
    "CUDA_DEVICE_MAX_CONNECTIONS=1,CUDA_SCALE_LAUNCH_QUEUES=0.25x",
)
"""No settings; one hardware queue instead of 8; a quarter of the launches in a queue; both."""

ALLOCATIONS, ALLOCATED = 10, 4 << 20


def one_life() -> dict[str, float]:
    """Seconds for `cuInit`, the primary context and some allocations, in a process without CUDA so far."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(driver, name)(*arguments):
            raise SystemExit(f"{name} failed: CUDA error {code}")

    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    taken: dict[str, float] = {}
    started = time.perf_counter()
    call("cuInit", 0)
    taken["init"] = time.perf_counter() - started
    started = time.perf_counter()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    taken["context"] = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(ALLOCATIONS):
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(ALLOCATED))
    taken["allocations"] = time.perf_counter() - started
    return taken


def measure(at_a_time: int, count: int, settings: dict[str, str]) -> dict[str, float]:
    """Means and medians over ``count`` processes, ``at_a_time`` of them at once."""

    def life(_: int) -> dict[str, float]:
        command = [sys.executable, __file__, "--one-life"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
        if done.returncode:
            raise SystemExit(f"a process with only a context failed: {done.stderr.strip()[-500:]}")
        found: dict[str, float] = json.loads(done.stdout)
        return found

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(life, range(at_a_time)))
        started = time.perf_counter()
        lives = list(pool.map(life, range(count)))
        seconds = (time.perf_counter() - started) / count
    return {"seconds": seconds} | {name: statistics.median(one[name] for one in lives) for name in lives[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[1, 4, 12])
    parser.add_argument("--count", type=int, default=48, help="number of processes in a run")
    parser.add_argument("--runs", type=int, default=2, help="number of repetitions")
    parser.add_argument("--set", nargs="+", default=SETTINGS, help="settings of a run: NAME=VALUE,NAME=VALUE")
    parser.add_argument("--one-life", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_life:
        print(json.dumps(one_life()))
        sys.stdout.flush()
        os._exit(0)  # exit without cleanup, like a killed process
    if wrong := [word for word in arguments.set if word and not all("=" in one for one in word.split(","))]:
        parser.error(f"--set must be NAME=VALUE with commas between them; got {wrong[0]!r}")
    rows: list[dict[str, object]] = []
    facts = {
        "cores": len(os.sched_getaffinity(0)),
        "commit": os.environ.get("KC_COMMIT") or _printed("git", "rev-parse", "--short", "HEAD"),
        "command": " ".join(["python", "benchmarks/judge/bench_contexts.py", *sys.argv[1:]]),
    }
    query = "--query-gpu=name,driver_version"
    name, driver = _printed("nvidia-smi", "--id=0", query, "--format=csv,noheader").split(", ")
    for run in range(arguments.runs):
        for at_a_time in arguments.at_a_time:
            for word in arguments.set:
                found = measure(at_a_time, arguments.count, dict(one.split("=", 1) for one in word.split(",") if one))
                found = {column: round(value, 5) for column, value in found.items()}
                row = {"at_a_time": at_a_time, "settings": word or "none", "run": run, "processes": arguments.count}
                rows.append({**row, **found, "device": name, "driver": driver, **facts})
                print(f"{at_a_time} at a time, {word or 'no settings'}: {found}", flush=True)
                with (RESULTS / "contexts_cuda.csv").open("w", newline="") as file:
                    writer = csv.DictWriter(file, rows[0])
                    writer.writeheader()
                    writer.writerows(rows)


def _printed(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{' '.join(command)} failed: {error}") from None


if __name__ == "__main__":
    main()
