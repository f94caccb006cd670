"""Measures how much the time of the same kernels differs from one fresh process to the next.

    python benchmarks/judge/bench_processes.py                                 # results/clock_processes_cuda.csv
    CUDA_DEVICE_MAX_CONNECTIONS=1 python benchmarks/judge/bench_processes.py   # with one hardware queue, as in a Runner

Each process times batches of 27 calls of a chain of six launches on [64, 256] behind a gate, with a cold cache. A time
is the median of 40 batches, in microseconds a call. `inputs_us`: with three other sets of inputs, the median of the
three. `temporaries_us`: after other allocations, so that the memory of the calls lies elsewhere. `stream_us`: on four
other streams. `again_us`: once more on the first stream, now that the others exist.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from side_by_side import Row, about_this_run, write

RESULTS = Path(__file__).parents[1] / "results"
CALLS, BATCHES = 27, 40


def chain(x: Tensor) -> Tensor:
    return torch.tanh(torch.relu(torch.sigmoid(x * 2) - 0.3)) * x


def measured() -> Row:
    """The times in this process."""
    from kernel_coder.judge.gpu.stream_gate import gate_of

    device = torch.device("cuda:0")
    flushed = torch.zeros(256 << 20, dtype=torch.uint8, device=device)
    gate = gate_of(device)
    assert gate is not None

    def drawn() -> list[Tensor]:
        return [torch.randn(64, 256, device=device) for _ in range(CALLS)]

    def time_us(inputs: Sequence[Tensor]) -> float:
        chain(inputs[0])
        flushed.zero_()
        torch.cuda.synchronize()  # the first launch of a kernel would wait for a shut gate
        found = []
        for _ in range(BATCHES):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            gate.shut()
            try:
                flushed.zero_()
                began.record()
                for x in inputs:
                    chain(x)
                ended.record()
            finally:
                gate.open()
            torch.cuda.synchronize()
            found.append(began.elapsed_time(ended) * 1e3 / CALLS)
        return statistics.median(found)

    first = drawn()
    row: Row = {"first_us": time_us(first)}
    held = []
    others = []
    for _ in range(3):
        held.append(torch.zeros(2 << 20, dtype=torch.uint8, device=device))
        others.append(time_us(drawn()))
    row["inputs_us"] = statistics.median(others)
    others = []
    for count in (37, 87, 137):
        held += [torch.zeros(30 << 10, dtype=torch.uint8, device=device) for _ in range(count)]
        others.append(time_us(first))
    row["temporaries_us"] = statistics.median(others)
    others = []
    for _ in range(4):
        with torch.cuda.stream(torch.cuda.Stream()):
            others.append(time_us(first))
    row["stream_us"] = statistics.median(others)
    row["again_us"] = time_us(first)
    return {name: f"{value:.2f}" for name, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--commit", help="commit in the rows, if there is no git")
    parser.add_argument("--out", type=Path, default=RESULTS / "clock_processes_cuda.csv")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.device = "cuda"
    if arguments.one:
        print(json.dumps(measured()))
        return
    about, rows = about_this_run(arguments), list[Row]()
    for process in range(arguments.processes):
        done = subprocess.run([sys.executable, __file__, "--one"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"a process failed: {done.stderr[-500:]}")
        queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "8")
        rows.append({"process": process, "queues": queues, **json.loads(done.stdout), **about})
        print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
        write(arguments.out, rows, last=tuple(about))


if __name__ == "__main__":
    main()
