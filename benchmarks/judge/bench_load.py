"""Measures how the work of other processes on the GPU appears to a process: the basis of the judge's load detection.

    python benchmarks/judge/bench_load.py                     # results/judge_load_cuda.csv
    python benchmarks/judge/bench_load.py --raw PATH          # also the time of every step, a line of JSON per probe

A probe is a number of cache flushes queued behind a gate. `load` is the judge's measure: the time from the opening of
the gate to the end, divided by the time that the steps take alone (:mod:`kernel_coder.judge.gpu.contention`). `loaded`
is the share of probes for which the judge takes the GPU as shared. Nothing delays one step after another, so a step
that takes longer contains a gap: a time slice of other processes. `between` is the time from one gap to the next, our
time slice.

The probes run beside: no other process; processes with idle contexts; a process that multiplies matrices; one and three
processes that queue a long kernel of one block; processes that create a context and exit, four at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from bench_judge import _commit, write
from kernel_coder.judge.examiner.timing_constants import FLUSH_BYTES
from kernel_coder.judge.gpu.contention import LOADED, PROBE_STEPS
from kernel_coder.judge.gpu.stream_gate import Gate

IDLE = "import time, torch; torch.zeros(1, device='cuda'); print('there', flush=True); time.sleep(3600)"
MULTIPLIES = """
import torch
x = torch.randn(2048, 2048, device="cuda")
print("there", flush=True)
while True:
    for _ in range(50):
        x = (x @ x).clamp(-1, 1)
    torch.cuda.synchronize()
"""
SLEEPS = """
import torch
print("there", flush=True)
while True:
    torch.cuda._sleep(2 * 10**9)
    torch.cuda.synchronize()
"""
STARTS = f"""
import subprocess, sys, threading
ONE_LIFE = [sys.executable, {str(Path(__file__).with_name("bench_contexts.py"))!r}, "--one-life"]
def forever():
    while True:
        subprocess.run(ONE_LIFE, capture_output=True)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
print("there", flush=True)
threading.Event().wait()
"""
BESIDE = {
    "no other program": [],
    "four idle contexts": [IDLE] * 4,
    "matrices": [MULTIPLIES],
    "a long kernel": [SLEEPS],
    "three long kernels": [SLEEPS] * 3,
    "contexts that start and end": [STARTS],
}


@contextlib.contextmanager
def beside(programs: list[str]) -> Iterator[None]:
    """Other processes that use the GPU."""
    others = [
        subprocess.Popen([sys.executable, "-c", one], stdout=subprocess.PIPE, start_new_session=True)
        for one in programs
    ]
    try:
        for one in others:
            assert one.stdout is not None
            if one.stdout.readline() != b"there\n":
                raise SystemExit("a process that was to be beside ended before it was at work")
        time.sleep(1.0)
        yield
    finally:
        for one in others:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, 9)
            one.wait()
        time.sleep(1.0)


class Prober:
    def __init__(self) -> None:
        self.gate = Gate(torch.device("cuda:0"))
        self.flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def probe(self, steps: int) -> tuple[list[float], float]:
        """Milliseconds of each step, and of the whole probe after the gate."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        for event in events:  # creates the event
            event.record()
        self.flushed.zero_()  # loads the kernel, because its first launch waits for the GPU
        torch.cuda.synchronize()
        self.gate.shut()
        try:
            events[0].record()
            for event in events[1:]:
                self.flushed.zero_()
                event.record()
        finally:
            opened = self.gate.open()
        torch.cuda.synchronize()
        wall = 1e3 * (time.perf_counter() - opened)
        return [first.elapsed_time(second) for first, second in pairwise(events)], wall


def row_of(probes: list[tuple[list[float], float]], step_ms: float) -> dict[str, object]:
    """The row of some probes; ``alone`` is the time of a step on an idle GPU."""
    loads = [wall / (len(steps) * step_ms) for steps, wall in probes]
    gaps: list[float] = []
    between: list[float] = []
    for steps, _ in probes:
        usual, since, is_whole = statistics.median(steps), 0.0, False
        for one in steps:
            if one > 2 * usual:
                gaps.append(one - usual)
                between += [since] * is_whole
                since, is_whole = 0.0, True
            since += usual
    low, middle, high = statistics.quantiles(loads, n=10)[::4]
    return {
        "step_us": round(1e3 * statistics.median(statistics.median(steps) for steps, _ in probes), 2),
        "load_tenth": round(low, 3),
        "load_median": round(middle, 3),
        "load_nine_tenths": round(high, 3),
        "loaded": round(sum(one >= LOADED for one in loads) / len(loads), 3),
        "gaps_a_probe": round(len(gaps) / len(probes), 2),
        "gap_ms_median": round(statistics.median(gaps), 3) if gaps else "",
        "gap_ms_most": round(max(gaps), 3) if gaps else "",
        "between_ms_median": round(statistics.median(between), 3) if between else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--probes", type=int, default=30, help="number of probes of each length beside each kind of load"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[PROBE_STEPS, 12 * PROBE_STEPS], help="numbers of flushes in a probe"
    )
    parser.add_argument("--raw", type=Path, help="file for JSON lines, one for each probe")
    arguments = parser.parse_args()
    prober = Prober()
    facts = {
        "device": torch.cuda.get_device_name(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
        "command": "python benchmarks/judge/bench_load.py",
    }
    rows: list[dict[str, object]] = []
    for _ in range(20):  # an idle GPU is slow at first
        steps, _ = prober.probe(arguments.steps[0])
    step_ms = statistics.median(steps)
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(arguments.raw.open("w")) if arguments.raw else None
        for name, programs in BESIDE.items():
            with beside(programs):
                prober.probe(arguments.steps[0])
                for count in arguments.steps:
                    probes = [prober.probe(count) for _ in range(arguments.probes)]
                    row = {"beside": name, "steps": count, "probes": len(probes)} | row_of(probes, step_ms)
                    rows.append(row | facts)
                    print(row, flush=True)
                    for steps, wall in probes if raw else ():
                        line = {"beside": name, "steps_us": [round(1e3 * one, 1) for one in steps], "wall_ms": wall}
                        print(json.dumps(line), file=raw)
            write(rows, "judge_load_cuda.csv")


if __name__ == "__main__":
    main()
