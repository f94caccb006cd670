"""Compares the judge's timing of small kernels with `triton.testing.do_bench` and KernelBench's evaluator.

    python benchmarks/judge/bench_clock.py                                         # results/judge_clock_cuda.csv
    python benchmarks/judge/bench_clock.py --kernelbench PATH/TO/KernelBench/src   # with KernelBench's evaluator
    python benchmarks/judge/bench_clock.py --itself 12                             # results/judge_itself_cuda.csv
    python benchmarks/judge/bench_clock.py --itself 12 --device cpu                # results/judge_itself_cpu.csv

Row kernels of four sizes in Triton are compared with eager PyTorch (one to five launches). One judge judges each of
them `--times` times, one at a time, with a cold L2 cache. It also judges the reference as a candidate, whose speedup is
1: the rows show how far the estimates are from 1, and how many intervals contain it. `--itself` does only that, with a
row for each verdict. do_bench and KernelBench measure in separate processes, with CUDA events and also a cold L2 cache.
do_bench queues the clearing of the cache before each call, which hides the CPU time of the launch; the judge's requests
wait behind a gate, which has the same effect.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from bench_judge import CANDIDATE, EVALUATE, KINDS, REFERENCE, _commit, write
from kernel_coder.judge import Judge, JudgeConfig, Verdict
from kernel_coder.tasks import Task

SIZES = ("64, 256", "1024, 1024", "2048, 2048", "4096, 4096")

MEASURE = """
import importlib.util, json, sys, torch
from triton.testing import do_bench
def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
reference, candidate = load(sys.argv[1], "reference"), load(sys.argv[2], "candidate")
inputs = [one.cuda() for one in reference.get_inputs()]
with torch.no_grad():
    times = [do_bench(lambda model=model: model(*inputs), warmup=50, rep=200, return_mode="median")
             for model in (reference.Model().cuda(), candidate.ModelNew().cuda())]
print(json.dumps(times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="number of verdicts on each kernel")
    parser.add_argument("--kernelbench", help="folder with the package kernelbench; default: without KernelBench")
    parser.add_argument(
        "--itself", type=int, metavar="TIMES", help="judge only references as candidates, this many times"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only with --itself")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="ROWS,COLUMNS")
    arguments = parser.parse_args()
    for one in arguments.sizes:
        if not re.fullmatch(r"[1-9]\d*, ?[1-9]\d*", one):
            parser.error(f"--sizes must be ROWS,COLUMNS; got {one}")
    for name in ("times", "itself"):
        if (given := getattr(arguments, name)) is not None and given < 1:
            parser.error(f"--{name} must be at least 1; got {given}")
    if arguments.device == "cpu" and not arguments.itself:
        parser.error("--device cpu needs --itself: do_bench and KernelBench need a GPU")
    arguments.sizes = [", ".join(re.findall(r"\d+", one)) for one in arguments.sizes]
    facts = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "commit": os.environ.get("KC_COMMIT") or _commit(),
        "command": " ".join(["python", "benchmarks/judge/bench_clock.py", *sys.argv[1:]]),
    }
    config = JudgeConfig(workers=1, profile=False)
    if arguments.itself:
        with Judge(arguments.device, "torch", config=config) as judge:
            found = list(itself(judge, arguments.sizes, arguments.itself, facts))
        write(found, f"judge_itself_{arguments.device}.csv")
        return
    rows: list[dict[str, object]] = []
    with Judge("cuda", "triton", config=config) as judge, tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            for number, (expression, body, other) in enumerate(KINDS):
                reference = REFERENCE.replace("64, 256", size).format(expression=expression)
                task = Task(id=f"clock/{number}", source="benchmark", reference=reference)
                candidate = CANDIDATE.format(number=number, body=body, other=other)
                verdicts = [judge.evaluate(task, candidate) for _ in range(arguments.times)]
                found = dict(judged(verdicts))
                row: dict[str, object] = {"kernel": expression, "size": size.replace(", ", "x"), **found}
                row |= elsewhere(Path(folder), reference, candidate, arguments.kernelbench)
                same = reference.replace("class Model(", "class ModelNew(")
                row |= alike([judge.evaluate(task, same, "torch") for _ in range(arguments.times)])
                rows.append(row | facts)
                print({name: row[name] for name in row if name not in facts}, flush=True)
                write(rows, "judge_clock_cuda.csv")


def itself(judge: Judge, sizes: list[str], times: int, facts: dict[str, object]) -> Iterator[dict[str, object]]:
    """A row for each verdict on a reference as its own candidate."""
    names = ("speedup_low", "speedup", "speedup_high", "runtime_ms", "reference_ms")
    for size in sizes:
        for number, (expression, _, _) in enumerate(KINDS):
            reference = REFERENCE.replace("64, 256", size).format(expression=expression)
            task = Task(id=f"clock/{number}", source="benchmark", reference=reference)
            same = reference.replace("class Model(", "class ModelNew(")
            verdicts = [judge.evaluate(task, same, "torch") for _ in range(times)]
            found = alike(verdicts)
            print(expression, size, {name: found[name] for name in found}, flush=True)
            for verdict in verdicts:
                row = {name: round(getattr(verdict, name), 4) for name in names}
                yield {"kernel": expression, "size": size.replace(", ", "x"), **row, **facts}


def judged(verdicts: list[Verdict]) -> Iterator[tuple[str, float | int]]:
    wrong = [one.reason for one in verdicts if not one.correct]
    if wrong:
        raise SystemExit(f"{len(wrong)} verdicts are not correct: {wrong[0]}")
    for name in ("reference_ms", "runtime_ms", "speedup", "speedup_low", "speedup_high"):
        yield name, round(statistics.median(getattr(one, name) for one in verdicts), 4)
    speedups = [one.speedup for one in verdicts if one.speedup is not None]
    yield "speedup_least", round(min(speedups), 4)
    yield "speedup_most", round(max(speedups), 4)


def alike(verdicts: list[Verdict]) -> dict[str, float | int]:
    """Columns for the reference as a candidate."""
    found = dict(judged(verdicts))
    lows_and_highs = [(one.speedup_low or 0.0, one.speedup_high or 0.0) for one in verdicts]
    return {
        "same_verdicts": len(verdicts),
        "same_least": found["speedup_least"],
        "same_most": found["speedup_most"],
        "same_low": found["speedup_low"],
        "same_high": found["speedup_high"],
        "same_holds_1": sum(low <= 1 <= high for low, high in lows_and_highs),
    }


def elsewhere(folder: Path, reference: str, candidate: str, kernelbench: str | None) -> dict[str, float | None]:
    """The times of do_bench and of KernelBench."""
    paths = [str(folder / "reference.py"), str(folder / "candidate.py")]
    for path, text in zip(paths, (reference, candidate), strict=True):
        Path(path).write_text(text)
    slow, fast = json.loads(_run(MEASURE, *paths).splitlines()[-1])
    row: dict[str, float | None] = {
        "do_bench_reference_ms": round(slow, 4),
        "do_bench_ms": round(fast, 4),
        "do_bench_speedup": round(slow / fast, 4),
    }
    if kernelbench:
        code = EVALUATE.replace("print(result)", "import json; print(json.dumps([result.ref_runtime, result.runtime]))")
        slow, fast = json.loads(_run(code, kernelbench, *paths).splitlines()[-1])
        row |= {"kernelbench_reference_ms": slow, "kernelbench_ms": fast, "kernelbench_speedup": round(slow / fast, 4)}
    return row


def _run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the measurement failed: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout


if __name__ == "__main__":
    main()
