"""Measures the judge's clock: the times and speedups it reports for kernels of known speed, beside two other clocks.

    python benchmarks/judge/bench_clock.py                       # results/clock_cuda.csv
    python benchmarks/judge/bench_clock.py --beside 11           # other candidates compile meanwhile
    python benchmarks/judge/bench_clock.py --device cpu          # results/clock_cpu.csv

A reference is judged as its own candidate, so its speedup is 1: gelu, softmax, layer_norm, matmul and a chain of five
kernels at six sizes each. Two more candidates do half of the reference's work, and one eleven twelfths. `--times`
verdicts give a row.

The other clocks run in a process of their own. `do_bench` is Triton's, with a cold cache; `do_bench_nothing` is what it
says of a function that does nothing. `batch` is the time of a call in a batch of calls on distinct inputs behind a
gate, by CUDA events. Times are microseconds.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from bench_judge import RESULTS, _commit, pairs
from kernel_coder.judge import Judge, JudgeConfig, Verdict
from kernel_coder.tasks import Task

SOURCE = """
import torch
class {name}(torch.nn.Module):
    def forward(self, {arguments}):
        {body}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""

ROWS = ((64, 256), (256, 512), (512, 1024), (1024, 2048), (4096, 2048), (8192, 4096))
KERNELS = {
    "gelu": ("return torch.nn.functional.gelu(x)", ROWS),
    "softmax": ("return torch.softmax(x, -1)", ROWS),
    "layer_norm": ("return torch.nn.functional.layer_norm(x, x.shape[-1:])", ROWS),
    "matmul": ("return x @ y", tuple((size, size) for size in (128, 256, 512, 1024, 2048, 4096))),
    "five kernels": ("return torch.tanh(torch.relu(torch.sigmoid(x * 2) - 0.3)) * x", ROWS),
}
FASTER = {  # the reference's body, the candidate's, and the sizes
    "half": (
        "return torch.abs(torch.abs(x))",
        "return torch.abs(x)",
        ((1024, 1024), (4096, 2048)),
    ),
    "eleven twelfths": (
        "y = torch.abs(x); torch.abs(y[: len(y) // 12], out=y[: len(y) // 12]); return y",
        "return torch.abs(x)",
        ((6144, 4096),),
    ),
}

MEASURE = """
import json, sys, torch
from triton.testing import do_bench
from kernel_coder.judge.gpu.stream_gate import gate_of

torch.set_grad_enabled(False)
flushed = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
gate, (began, ended) = gate_of(torch.device("cuda:0")), [torch.cuda.Event(enable_timing=True) for _ in range(2)]

def times(source, name):
    space = {"__name__": name}
    exec(source, space)
    model = space[name]()
    with torch.device("cuda"):
        inputs = space["get_inputs"]()
        count = max(2, min(100, (1 << 30) // sum(one.nbytes for one in inputs)))
        many = [space["get_inputs"]() for _ in range(count)]
    batches = []
    for _ in range(7):
        for one in (began, ended):
            model(*inputs)
            one.record()
        torch.cuda.synchronize()
        gate.shut()
        flushed.zero_()
        began.record()
        for one in many:
            model(*one)
        ended.record()
        gate.open()
        torch.cuda.synchronize()
        batches.append(began.elapsed_time(ended) / count)
    return do_bench(lambda: model(*inputs), warmup=10, rep=40, return_mode="median"), sorted(batches)[3]

nothing = do_bench(lambda: None, warmup=10, rep=30, return_mode="median")
for reference, candidate in json.load(open(sys.argv[1])):
    found = [nothing, *times(reference, "Model"), *times(candidate, "ModelNew")]
    print(json.dumps([round(1e3 * one, 2) for one in found]), flush=True)
    torch.cuda.empty_cache()
"""


class Case(NamedTuple):
    """A reference, a candidate, and how the row is called."""

    kernel: str
    size: tuple[int, int]
    reference: str
    candidate: str


def cases(wanted: list[str]) -> Iterator[Case]:
    """All of them, or those of these kernels."""

    def source(name: str, body: str, size: tuple[int, int]) -> str:
        names = ["x", "y"] if " y" in body and "y =" not in body else ["x"]
        inputs = ", ".join([f"torch.randn{size}"] * len(names))
        return SOURCE.format(name=name, arguments=", ".join(names), body=body, inputs=inputs)

    own = {name: (body, body, sizes) for name, (body, sizes) in KERNELS.items()}
    for name, (body, other, sizes) in {**own, **FASTER}.items():
        if not wanted or name in wanted:
            for size in sizes:
                yield Case(name, size, source("Model", body, size), source("ModelNew", other, size))


@contextmanager
def compiling(judge: Judge, count: int) -> Iterator[None]:
    """Other candidates are judged all the time, each with a source of its own, so that most of them compile."""
    stop, numbers = threading.Event(), itertools.count(1)

    def judge_others() -> None:
        while not stop.is_set():
            judge.evaluate(*next(pairs(1, next(numbers))), "triton")

    threads = [threading.Thread(target=judge_others) for _ in range(count)]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        stop.set()
        for one in threads:
            one.join()


def elsewhere(wanted: list[Case]) -> list[dict[str, float]]:
    """What the other clocks say of each case."""
    names = ("do_bench_nothing", "do_bench_reference", "batch_reference", "do_bench", "batch")
    with tempfile.NamedTemporaryFile("w") as file:
        json.dump([case[2:] for case in wanted], file)
        file.flush()
        done = subprocess.run([sys.executable, "-c", MEASURE, file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the other clocks failed: {done.stderr[-500:]}")
    return [dict(zip(names, json.loads(line), strict=True)) for line in done.stdout.splitlines()]


def row_of(case: Case, verdicts: list[Verdict]) -> dict[str, object]:
    """What the judge said."""
    good = [one for one in verdicts if one.speedup is not None]
    for one in verdicts:
        if one.speedup is None:
            print(f"no speedup: {one.outcome}: {one.reason}", flush=True)
    row: dict[str, object] = {"kernel": case.kernel, "size": "x".join(map(str, case.size)), "verdicts": len(good)}
    if not good:
        return row
    lows, speedups, highs = (
        [float(getattr(one, name)) for one in good] for name in ("speedup_low", "speedup", "speedup_high")
    )
    row |= {
        "low_least": round(min(lows), 4),
        "low": round(statistics.median(lows), 4),
        "speedup_least": round(min(speedups), 4),
        "speedup": round(statistics.median(speedups), 4),
        "speedup_most": round(max(speedups), 4),
        "high": round(statistics.median(highs), 4),
        "high_most": round(max(highs), 4),
        "holds_1": sum(low <= 1 <= high for low, high in zip(lows, highs, strict=True)),
    }
    for name in ("reference_ms", "runtime_ms"):
        row[name.replace("_ms", "_us")] = round(1e3 * statistics.median(getattr(one, name) for one in good), 2)
    row["calls"] = statistics.median(len(one.runtimes_ms) for one in good)
    row["seconds"] = round(statistics.median(sum(one.stage_s.values()) for one in good), 3)
    row["timing_s"] = round(statistics.median(one.stage_s.get("time", 0.0) for one in good), 3)
    row["alone"] = sum("alone" in one.stage_s for one in good)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="verdicts on each kernel")
    parser.add_argument("--beside", type=int, default=0, metavar="COUNT", help="candidates that are judged meanwhile")
    parser.add_argument("--kernels", nargs="+", default=[], choices=[*KERNELS, *FASTER], help="default: all")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="PLACE", help="of the six sizes, from 0; default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/clock_DEVICE.csv")
    arguments = parser.parse_args()
    facts = {
        "beside": arguments.beside,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
        "command": " ".join(["python", "benchmarks/judge/bench_clock.py", *sys.argv[1:]]),
    }
    path = arguments.out or RESULTS / f"clock_{arguments.device}.csv"
    wanted = [
        case
        for number, case in enumerate(cases(arguments.kernels))
        if not arguments.sizes or number % len(ROWS) in arguments.sizes
    ]
    others: list[dict[str, float]] = [{}] * len(wanted)
    if arguments.device == "cuda" and not arguments.beside:
        others = elsewhere(wanted)
    rows: list[dict[str, object]] = []
    config = JudgeConfig(workers=1 + arguments.beside, profile=False)
    with Judge(arguments.device, "torch", config=config) as judge, compiling(judge, arguments.beside):
        for case, other in zip(wanted, others, strict=True):
            task = Task(id=f"clock/{case.kernel}/{case.size}", source="benchmark", reference=case.reference)
            row = row_of(case, [judge.evaluate(task, case.candidate, "torch") for _ in range(arguments.times)]) | other
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
            rows.append(row | facts)
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(dict.fromkeys(name for one in rows for name in one)))
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
