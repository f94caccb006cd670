"""Measures how many candidates per second a judge judges, compared with KernelBench's evaluator in fresh processes.

    python benchmarks/judge/bench_judge.py --kernelbench PATH/TO/KernelBench/src   # results/judge_rate_cuda.csv
    python benchmarks/judge/bench_judge.py --device cpu --packaged                 # judge_rate_cpu_packaged.csv
    python benchmarks/judge/bench_judge.py --spread 30                             # judge_spread_cuda.csv

The candidates are correct Triton kernels, each with a different source, so that no compiled kernel is used twice. Both
judges check 5 times and time 100 calls (on the CPU, where kernels are interpreted, nothing is timed). `seconds` is the
wall time divided by the number of candidates. Our judge runs with and without the profiling pass for kernel_share,
which KernelBench does not have.

--packaged judges packaged pairs instead of row kernels. --spread judges one kernel repeatedly, alone and beside
candidates that compile, and writes every speedup with its interval.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.tasks import Task, load_tasks

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share
from kernelbench_evaluator import WITHOUT_CLIENTS

RESULTS = Path(__file__).parents[1] / "results"

REFERENCE = """
import torch
rows, columns = 64, 256
class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}
def get_inputs():
    return [torch.rand(rows, columns)]
def get_init_inputs():
    return []
"""

CANDIDATE = """
import torch
import triton
import triton.language as tl

@triton.jit
def row_kernel_{number}(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other={other})
    tl.store(out_ptr + row * columns + column, {body}, mask=mask)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        row_kernel_{number}[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
"""

KINDS = [
    ("torch.softmax(x, dim=-1)", "tl.softmax(x)", '-float("inf")'),
    ("torch.relu(x - 0.5) * 2", "tl.maximum(x - 0.5, 0.0) * 2", "0.0"),
    (
        "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)",
        "x * tl.rsqrt(tl.sum(x * x) / columns + 1e-6)",
        "0.0",
    ),
    ("torch.sigmoid(x) * x", "x / (1 + tl.exp(-x))", "0.0"),
]

EVALUATE = (
    WITHOUT_CLIENTS
    + """
import torch
sys.path.insert(0, sys.argv[1])
from kernelbench.eval import eval_kernel_against_ref
result = eval_kernel_against_ref(
    open(sys.argv[2]).read(), open(sys.argv[3]).read(), measure_performance=True, num_correct_trials=5,
    num_perf_trials=100, device=torch.device("cuda:0"), backend="triton",
)
print(result)
sys.exit(0 if result is not None and result.correctness else 1)
"""
)


def pairs(count: int, first: int, group: int = 1) -> Iterator[tuple[Task, str]]:
    for number in range(first, first + count):
        kind = number // group % len(KINDS)
        expression, body, other = KINDS[kind]
        reference = REFERENCE.format(expression=expression)
        yield (
            Task(id=f"rate/{kind}", source="benchmark", reference=reference),
            CANDIDATE.format(number=number, body=body, other=other),
        )


def packaged_pairs(count: int, first: int) -> Iterator[tuple[Task, str]]:
    """The packaged tasks and their solutions, repeated. Inductor made the solutions for one shape."""
    solved = [task for task in load_tasks("packaged") if task.solution is not None]
    for number in range(first, first + count):
        task = solved[number % len(solved)]
        yield task, str(task.solution)


Pairs = Callable[[int, int], Iterator[tuple[Task, str]]]


def ours(device: str, workers: int, count: int, profile: bool, first: int, make: Pairs = pairs) -> float:
    config = JudgeConfig(
        workers=workers,
        checks=5,
        timed_calls=100,
        profile=profile,
        hidden_shapes="off" if make is packaged_pairs else "flag",
        allow=("library_matmul",) if make is packaged_pairs else (),
    )
    with Judge(device, "triton", config=config) as judge:
        warm = list(judge.evaluate_many(make(2 * workers, first)))  # starts the processes
        started = time.perf_counter()
        verdicts = list(judge.evaluate_many(make(count, first + 2 * workers)))
        taken = time.perf_counter() - started
    wrong = [one.reason for one in (*warm, *verdicts) if not one.correct]
    if wrong:
        raise SystemExit(f"{len(wrong)} candidates were not found correct: {wrong[0]}")
    names = list(dict.fromkeys(name for one in verdicts for name in one.stage_s))
    stages = {name: statistics.mean(one.stage_s.get(name, 0.0) for one in verdicts) for name in names}
    print("  seconds by stage:", ", ".join(f"{name} {mean:.2f}" for name, mean in stages.items()), flush=True)
    again = sum("alone" in one.stage_s for one in verdicts)
    print(f"  the reference was timed once more, without the candidate, for {again} of {count}", flush=True)
    return taken / count


def kernelbench(source: str, workers: int, count: int, folder: Path) -> float:
    def one(number: int) -> None:
        task, candidate = next(pairs(1, number))
        reference, new = folder / f"{number}_ref.py", folder / f"{number}_new.py"
        reference.write_text(task.reference)
        new.write_text(candidate)
        command = [sys.executable, "-c", EVALUATE, source, str(reference), str(new)]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
        )
        if done.returncode:
            raise SystemExit(f"KernelBench's evaluator failed: {(done.stdout + done.stderr)[-500:]}")

    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(count)))
    return (time.perf_counter() - started) / count


def spread(device: str, times: int, workers: int) -> Iterator[dict[str, object]]:
    """Judges one candidate repeatedly, alone and beside candidates that compile: its speedups and changed verdicts.

    Without a GPU it is written in torch, since interpreted kernels are not timed.
    """
    large = REFERENCE.replace("64, 256", "4096, 4096" if device == "cuda" else "512, 512").format(
        expression=KINDS[0][0]
    )
    backend = "triton" if device == "cuda" else "torch"
    candidate = CANDIDATE.format(number=0, body=KINDS[0][1], other=KINDS[0][2])
    if backend == "torch":
        candidate = large.replace("class Model(", "class ModelNew(")
    task = Task(id="spread/softmax", source="benchmark", reference=large)
    for neighbours in (0, workers - 1):
        with Judge(device, backend, config=JudgeConfig(workers=workers, profile=False)) as judge:
            stop, numbers = threading.Event(), itertools.count(1)

            def compile_others(
                stop: threading.Event = stop, judge: Judge = judge, numbers: Iterator[int] = numbers
            ) -> None:
                while not stop.is_set():
                    judge.evaluate(*next(pairs(1, next(numbers))), "triton")

            judge.evaluate(task, candidate)
            beside = [threading.Thread(target=compile_others) for _ in range(neighbours)]
            for one in beside:
                one.start()
            try:
                verdicts = [judge.evaluate(task, candidate) for _ in range(times)]
            finally:
                stop.set()
                for one in beside:
                    one.join()
        found = [one.speedup for one in verdicts if one.speedup is not None]
        yield {
            "neighbours": neighbours,
            "verdicts": len(verdicts),
            "correct": sum(one.correct for one in verdicts),
            "speedup_median": round(statistics.median(found), 4),
            "speedup_least": round(min(found), 4),
            "speedup_most": round(max(found), 4),
            "variation": round(statistics.stdev(found) / statistics.mean(found), 4),
            "lower_bound_least": round(min(one.speedup_low for one in verdicts if one.speedup_low is not None), 4),
            "lower_bound_most": round(max(one.speedup_low for one in verdicts if one.speedup_low is not None), 4),
            "runtime_ms": round(statistics.median(one.runtime_ms for one in verdicts if one.runtime_ms is not None), 4),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--kernelbench", help="folder with the package kernelbench; default: only our judge")
    parser.add_argument(
        "--group", type=int, default=1, help="number of successive candidates for a task, as in training"
    )
    parser.add_argument("--profiled", action="store_true", help="also our judge with the profiling pass")
    parser.add_argument("--count", type=int, default=12, help="number of candidates judged one at a time")
    parser.add_argument("--many", type=int, help="number of candidates judged in parallel; default: four times --count")
    parser.add_argument("--packaged", action="store_true", help="judge the packaged pairs")
    parser.add_argument("--spread", type=int, help="judge one kernel this many times, alone and beside others")
    parser.add_argument("--out", type=Path, help="CSV file; default: one in benchmarks/results")
    arguments = parser.parse_args()
    facts = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
        "command": " ".join(["python", "benchmarks/judge/bench_judge.py", *sys.argv[1:]]),
    }
    rows: list[dict[str, object]] = []
    many = 12 if arguments.device == "cuda" else len(os.sched_getaffinity(0))
    if arguments.spread:
        for row in spread(arguments.device, arguments.spread, many):
            rows.append(row | facts)
            print(row, flush=True)
            write(rows, arguments.out or RESULTS / f"judge_spread_{arguments.device}.csv")
        return

    def keep(name: str, workers: int, count: int, seconds: float) -> None:
        rows.append(
            {
                "implementation": name,
                "at_a_time": workers,
                "group": arguments.group,
                "candidates": count,
                "seconds": round(seconds, 4),
            }
            | facts
        )
        print(f"{name}, {workers} at a time: {seconds:.3f} s each, {1 / seconds:.2f} a second", flush=True)
        default = RESULTS / f"judge_rate_{arguments.device}{'_packaged' * arguments.packaged}.csv"
        write(rows, arguments.out or default)

    make = packaged_pairs if arguments.packaged else functools.partial(pairs, group=arguments.group)
    first = 0
    for workers, count in ((1, arguments.count), (many, arguments.many or 4 * arguments.count)):
        for profile in (False, True) if arguments.profiled else (False,):
            seconds = ours(arguments.device, workers, count, profile, first, make)
            first += 2 * workers + count
            keep("kernel_coder, profiled" if profile else "kernel_coder", workers, count, seconds)
        if arguments.kernelbench:
            import tempfile

            with tempfile.TemporaryDirectory() as folder:
                seconds = kernelbench(arguments.kernelbench, workers, count, Path(folder))
            keep("KernelBench, fresh processes", workers, count, seconds)


def write(rows: list[dict[str, object]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
