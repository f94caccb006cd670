"""Judges the answers of an evaluation again: strictly by our judge, and by KernelBench's own evaluator.

    python benchmarks/training/kernelbench/rejudge.py runs/kernelbench-135m/level1 --tasks kernelbench:level1 \
        --kernelbench-dir DIR --kernelbench-src KernelBench/src

The evaluation (``kernel_coder.evaluate``) used KernelBench's semantics: the task's own shapes. Here every answer with
code is judged by the default :class:`JudgeConfig` with hidden shapes, and by KernelBench's
``eval_kernel_against_ref`` in a fresh process. ``rejudged.jsonl`` in the same folder gets a line for each answer, so a
repeated command continues; ``rejudged.md`` counts them and lists each difference.

KernelBench's evaluator draws inputs on the CPU, which takes a minute for those of 6 GB. Here the problem's
``get_inputs`` runs with the GPU as the default device, so the numbers differ and their distribution does not. An answer
for which the GPU had no memory beside others is evaluated once more with the GPU to itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from kernel_coder.judge import JudgeConfig
from kernel_coder.judge.supervisor.open import open_judge
from kernel_coder.tasks import load_tasks

sys.path.insert(0, str(Path(__file__).parents[2]))  # the helpers that all benchmarks share
from kernelbench_evaluator import WITHOUT_CLIENTS

ON_THE_GPU = """

_get_inputs = get_inputs
def get_inputs():
    with __import__("torch").device("cuda"):
        return _get_inputs()
"""

NO_MEMORY = "out of memory"

THEIRS = (
    WITHOUT_CLIENTS
    + """
import json, torch
sys.path.insert(0, sys.argv[1])
from kernelbench.eval import eval_kernel_against_ref
result = eval_kernel_against_ref(
    open(sys.argv[2]).read(), open(sys.argv[3]).read(), measure_performance=False, num_correct_trials=5,
    device=torch.device("cuda:0"), backend="triton",
)
compiled, correct = (result.compiled, result.correctness) if result is not None else (False, False)
said = str(getattr(result, "metadata", ""))[:400]
print("RESULT " + json.dumps({"compiled": bool(compiled), "correct": bool(correct), "said": said}))
"""
)


def physical(gpu: str) -> str:
    """The name by which a new process finds a GPU, from its number among the GPUs that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[int(gpu)] if visible else gpu


def theirs(source: str, reference: str, code: str, limit_s: float, gpu: str) -> dict[str, Any]:
    """KernelBench's result for one answer, from a process of its own on one GPU."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("run.py", "reference.py", "answer.py")]
        for path, text in zip(paths, (THEIRS, reference + ON_THE_GPU, code), strict=True):
            path.write_text(text)
        try:
            done = subprocess.run(
                [sys.executable, str(paths[0]), source, str(paths[1]), str(paths[2])],
                capture_output=True,
                text=True,
                timeout=limit_s,
                cwd=folder,
                check=False,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": physical(gpu),
                    "TORCH_EXTENSIONS_DIR": folder,
                    "TRITON_CACHE_DIR": f"{folder}/triton",
                },
            )
        except subprocess.TimeoutExpired:
            return {"compiled": None, "correct": False, "said": f"no result within {limit_s:.0f} s"}
        line = next((each for each in done.stdout.splitlines() if each.startswith("RESULT ")), None)
        if line is None:
            return {"compiled": None, "correct": False, "said": done.stderr.strip()[-400:]}
        found: dict[str, Any] = json.loads(line[7:])
        return found


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file; empty if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    """Runs the command and returns its exit code: 0 done, 75 out of time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flag = parser.add_argument
    flag("folder", type=Path, help="output folder of the evaluation")
    flag("--tasks", required=True, help="the evaluation's task set")
    flag("--kernelbench-dir", help="copy of KernelBench's tasks")
    flag("--kernelbench-src", help="folder with the package kernelbench (commit 423217d); default: only our judge")
    flag("--device", default="cuda:0")
    flag("--workers", type=int, default=6, help="answers judged at once by our judge")
    flag("--processes", type=int, default=2, help="processes of KernelBench's evaluator at once, on each GPU")
    flag("--gpus", default="0", help="numbers of the visible GPUs for KernelBench's evaluator, separated by commas")
    flag("--answers", type=int, help="only so many answers to each task; default: all")
    flag("--no-strict", action="store_true", help="do not judge strictly by our judge")
    flag("--limit-s", type=float, default=120.0, help="time limit of one of those, in seconds")
    flag("--seconds", type=float, default=540.0, help="stop after this many seconds; the same command continues")
    options = parser.parse_args()
    if not (options.folder / "verdicts.jsonl").is_file():
        parser.error(f"{options.folder} has no verdicts.jsonl: name the output folder of `kernel-coder evaluate`")
    began = time.monotonic()
    overrides = {"kernelbench_dir": options.kernelbench_dir} if options.kernelbench_dir else {}
    tasks = {task.id: task for task in load_tasks(options.tasks, **overrides)}
    samples = {(one["task"], one["sample"]): one for one in lines(options.folder / "samples.jsonl")}
    verdicts = {(one["task"], one["sample"]): one["verdict"] for one in lines(options.folder / "verdicts.jsonl")}
    out = options.folder / "rejudged.jsonl"
    known = {(one["task"], one["sample"]): one for one in lines(out)}
    most = options.answers or len(samples)
    with_code = [key for key in verdicts if samples.get(key, {}).get("code") and key[1] < most]
    todo = [key for key in with_code if key not in known]
    print(f"{len(verdicts)} answers, {len(with_code)} with code, {len(todo)} to judge", flush=True)
    strict = JudgeConfig(workers=options.workers, timing=False, timeout_s=60.0)
    gpus = options.gpus.split(",")
    free, whole = queue.SimpleQueue[str](), queue.SimpleQueue[str]()  # places for a process; GPUs with no other process
    for gpu in gpus * options.processes:
        free.put(gpu)
    for gpu in gpus:
        whole.put(gpu)

    def on_a_gpu(pair: tuple[tuple[str, int], str], places: queue.SimpleQueue[str] = free) -> dict[str, Any]:
        gpu = places.get()
        try:
            return theirs(options.kernelbench_src, tasks[pair[0][0]].reference, pair[1], options.limit_s, gpu)
        finally:
            places.put(gpu)

    def keep(key: tuple[str, int], verdict: Any, found: dict[str, Any]) -> None:
        known[key] = {
            "task": key[0],
            "sample": key[1],
            "first": verdicts[key]["outcome"],
            "strict": None if verdict is None else str(verdict.outcome),
            "reason": "" if verdict is None else (verdict.reason or "")[:400],
            "kernelbench": found,
        }
        with out.open("a") as file:
            file.write(json.dumps(known[key]) + "\n")

    def is_over() -> bool:
        return time.monotonic() - began > options.seconds

    with contextlib.ExitStack() as stack:
        judge = None
        if not options.no_strict:
            judge = stack.enter_context(open_judge(options.device, "triton", config=strict))
        pool = stack.enter_context(ThreadPoolExecutor(len(gpus) * options.processes))
        size = 24 if judge is not None else max(len(todo), 1)
        for at in range(0, len(todo), size):
            if is_over():
                break
            part = [(key, samples[key]["code"]) for key in todo[at : at + size]]
            ours: dict[tuple[str, int], Any] = {}
            if judge is not None:
                found = judge.evaluate_many((tasks[key[0]], code) for key, code in part)
                ours = dict(zip([key for key, _ in part], found, strict=True))
            if not options.kernelbench_src:
                for key, _ in part:
                    keep(key, ours.get(key), {})
                continue
            asked = {pool.submit(on_a_gpu, pair): pair for pair in part}
            alone = []
            for future in as_completed(asked):
                key = asked[future][0]
                if NO_MEMORY in future.result()["said"].lower():
                    alone.append(asked[future])
                else:
                    keep(key, ours.get(key), future.result())
                if is_over():
                    pool.shutdown(wait=True, cancel_futures=True)
                    break
            asked = {} if is_over() else {pool.submit(on_a_gpu, pair, whole): pair for pair in alone}
            for future in as_completed(asked):
                key = asked[future][0]
                keep(key, ours.get(key), future.result())
    write_summary(options.folder / "rejudged.md", list(known.values()), sum(key[1] < most for key in verdicts))
    print((options.folder / "rejudged.md").read_text())
    return 75 if len(known) < len(with_code) else 0


def write_summary(path: Path, records: list[dict[str, Any]], answers: int) -> None:
    """Markdown: how many answers each judge finds correct, and each answer on which two judges differ."""
    first = sum(one["first"] == "correct" for one in records)
    strict = sum(one["strict"] == "correct" for one in records)
    has_strict = any(one["strict"] is not None for one in records)
    has_theirs = any(one["kernelbench"] for one in records)
    their = sum(bool(one["kernelbench"].get("correct")) for one in records)
    text = [
        "| judge | correct |",
        "|---|---|",
        f"| ours, the task's shapes | {first} of {answers} |",
        f"| ours, strict | {f'{strict} of {answers}' if has_strict else 'not run'} |",
        f"| KernelBench's | {f'{their} of {answers}' if has_theirs else 'not run'} |",
        "",
        "## Differences",
        "",
    ]
    for one in records:
        said = {one["first"] == "correct"} | ({one["strict"] == "correct"} if has_strict else set())
        if has_theirs:
            said.add(bool(one["kernelbench"].get("correct")))
        if len(said) > 1:
            text.append(
                f"- {one['task']} sample {one['sample']}: ours {one['first']}, strict {one['strict']} "
                f"({one['reason']}), KernelBench {one['kernelbench']}"
            )
    path.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    sys.exit(main())
