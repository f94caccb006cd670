"""Measures what `refine` finds within a budget of answers on held-out tasks: serial, parallel or mixed.

    python benchmarks/training/bench_refine.py                 # nano, 20 tasks, on the CPU: results/refine_cpu.csv
    python benchmarks/training/bench_refine.py --parallel 30 --seeds 0 1 2 --model FOLDER --seconds 480
    python benchmarks/training/bench_refine.py --device cuda --gpus 4 --parallel 32 --tasks packaged:heldout \
        --model FOLDER

Each search is a process `kernel_coder.refine` and ends with the first correct kernel. A plan is a strategy with its
rounds and the answers in each round: `serial:8x1` shows each verdict to the next answer, `parallel:1x8` samples eight
independent answers, `best_of_turns:4x2` shows the best answer so far. All plans have the same budget. A row holds the
share of tasks solved within a number of answers and within a number of evaluations (different candidates; an answer
without code is none). Intervals are over tasks; the last lines compare plans task by task. If --seconds ends a search,
its task counts as unsolved beyond what it reached (column `cut`).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_coder.evaluate.metrics import intervals
from kernel_coder.tasks import load_tasks

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from trials import RESULTS, Trial, add_flags, append, commit, fresh, run_all

PLANS = ("serial:8x1", "parallel:1x8", "best_of_turns:4x2")
FOR_NANO = "packaged:pointwise_heldout"
NANO = "--prompt-template nano --feedback-template nano --earlier-reasoning keep --context-turns 1 --max-new-tokens 384"
JUDGE = "--judge.timing false --judge.profile false --judge.checks 2 --judge.null-candidates false"
NEVER = 1 << 30


@dataclass(frozen=True)
class Search:
    """A started search, and the number of answers and evaluations until the task was solved."""

    tokens: tuple[int, ...]  # number of tokens in each answer
    solved_by_answers: int
    solved_by_evaluations: int
    is_cut: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", nargs="+", default=list(PLANS), help="strategy:ROUNDSxANSWERS")
    parser.add_argument("--tasks", default=FOR_NANO, help="task set, as for evaluate")
    parser.add_argument("--count", type=int, default=20, help="number of tasks, chosen by a hash of their ids")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0], help="seeds; one search for each seed, task and plan"
    )
    parser.add_argument("--model", default="nano")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs that searches use in turn")
    parser.add_argument("--flags", default="", help="more flags for every search")
    add_flags(parser, RESULTS / "refine_DEVICE.csv")
    options = parser.parse_args()
    options.commit = options.commit or commit()
    out = Path(str(options.out).replace("DEVICE", options.device))
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as temporary:
        root = fresh((options.keep or Path(temporary)) / "searches")
        trials, tasks = make_trials(root, options)
        ended = set()
        for trial, seconds in run_all(trials, parallel=options.parallel, cores=options.cores, deadline=deadline):
            ended.add(trial.name)
            solved = (trial.folder / "out" / "best.py").exists()
            print(f"{trial.name}: {'solved' if solved else 'not solved'}, {seconds:.0f} s", flush=True)
        searches = {trial.name: read(trial.folder / "out", trial.name not in ended) for trial in trials}
    # Use only tasks that every plan has started, so that all plans have the same tasks.
    known = [k for k in range(tasks) if all(searches[name] for name in names_of(k, options))]
    if not known:
        sys.exit("no task was begun by every plan")
    curves = {}
    for plan in options.plans:
        groups = [[found for name in names_of(k, options, plan) if (found := searches[name])] for k in known]
        for row in rows_of(plan, groups, options):
            append(out, row)
        curves[plan] = by_task(groups, row["budget"])
        print(
            f"{plan}: {told(curves[plan])} of {len(known)} tasks within {row['budget']} answers; "
            f"{row['answers_mean']:.1f} answers and {row['tokens_mean']:.0f} tokens a task"
        )
    for other in options.plans[1:]:
        print(f"{options.plans[0]} - {other}: {told(curves[options.plans[0]] - curves[other], sign='+')}")


def make_trials(root: Path, options: argparse.Namespace) -> tuple[list[Trial], int]:
    """The searches, task by task, and the number of tasks."""
    _, tasks = load_tasks(options.tasks).hold_out(options.count)
    shared = ["--device", options.device, "--model", options.model, "--stop-when-correct", *shlex.split(JUDGE)]
    shared += ["--judge.families", '["own", "normal"]', "--judge.workers", str(options.cores), "--num-threads", "1"]
    shared += shlex.split(NANO) if options.tasks == FOR_NANO else []
    gpus = visible_gpus(options.gpus) if options.device == "cuda" else [""]
    trials: list[Trial] = []
    for k, task in enumerate(tasks):
        module = root / f"{k:03d}.py"
        module.write_text(task.reference)
        for name in names_of(k, options):
            plan, _, seed = name.removeprefix(f"{k:03d}-").rpartition("-")
            strategy, rounds, answers = parts_of(plan)
            size = ["--strategy", strategy, "--turns", str(rounds), "--parallel", str(answers), "--seed", seed]
            out = ["--output", str(root / name / "out")]
            command = [sys.executable, "-m", "kernel_coder.refine", str(module), *out, *size, *shared]
            command += ["--precision", task.precision, *shlex.split(options.flags)]
            gpu = {"CUDA_VISIBLE_DEVICES": gpus[len(trials) % len(gpus)]}
            # Exit code 1: the budget is spent and no kernel is correct.
            trials.append(Trial(name, command, root / name, fine=(0, 1), environment=gpu))
    return trials, len(tasks)


def visible_gpus(count: int) -> list[str]:
    """The names of the first GPUs that this process may use, for CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def names_of(k: int, options: argparse.Namespace, plan: str | None = None) -> list[str]:
    """The GPU for the searches of the k-th task."""
    plans = options.plans if plan is None else [plan]
    return [f"{k:03d}-{one}-{seed}" for one in plans for seed in options.seeds]


def parts_of(plan: str) -> tuple[str, int, int]:
    """Strategy, rounds, and answers in a round."""
    strategy, _, size = plan.partition(":")
    rounds, _, answers = size.partition("x")
    if not (rounds.isdigit() and answers.isdigit()):
        raise SystemExit(f"a plan is strategy:ROUNDSxANSWERS, such as serial:8x1; got {plan}")
    return strategy, int(rounds), int(answers)


def read(folder: Path, is_cut: bool) -> Search | None:
    """Reads the file of a search; None if the search has not started."""
    path = folder / "trajectory.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    answers = [one for one in records if one["kind"] == "answer"]
    correct = {
        (one["turn"], one["sample"])
        for one in records
        if one["kind"] == "verdict" and one["verdict"]["outcome"] == "correct"
    }
    if not answers:
        return None
    by_answers = by_evaluations = NEVER
    candidates: set[str] = set()
    for count, one in enumerate(answers, start=1):
        candidates |= {one["code"]} - {None}
        if (one["turn"], one["sample"]) in correct:
            by_answers, by_evaluations = count, len(candidates)
            break
    return Search(tuple(one["tokens"] for one in answers), by_answers, by_evaluations, is_cut)


def rows_of(plan: str, groups: Sequence[Sequence[Search]], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each budget; ``groups`` holds the searches of each task."""
    strategy, rounds, width = parts_of(plan)
    everything = [one for group in groups for one in group]
    for budget in range(1, rounds * width + 1):
        row: dict[str, Any] = {"strategy": strategy, "rounds": rounds, "answers_a_round": width, "budget": budget}
        for name in ("solved_by_answers", "solved_by_evaluations"):
            value, low, high = estimate(by_task(groups, budget, name))
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
        yield row | {
            "answers_mean": mean([len(one.tokens[:budget]) for one in everything]),
            "tokens_mean": mean([sum(one.tokens[:budget]) for one in everything]),
            "cut": sum(one.is_cut for one in everything),
            "tasks": len(groups),
            "searches_per_task": len(options.seeds),
            "task_set": options.tasks,
            "model": Path(options.model).name,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "commit": options.commit,
            "command": f"python benchmarks/training/bench_refine.py --plans {plan} --tasks {options.tasks}"
            f" --count {options.count} --seeds {' '.join(map(str, options.seeds))} --model {Path(options.model).name}"
            f" --device {options.device}" + (f" --flags {shlex.quote(options.flags)}" if options.flags else ""),
        }


def by_task(groups: Sequence[Sequence[Search]], budget: int, name: str = "solved_by_answers") -> np.ndarray:
    """For each task, the share of its searches that solved it within the budget."""
    return np.array([mean([getattr(one, name) <= budget for one in group]) for group in groups])


def estimate(values: np.ndarray) -> tuple[float, float | None, float | None]:
    """The mean over tasks and its interval."""
    bounds = intervals(values[:, None], np.ones((len(values), 1)))[0]
    low, high = bounds or (None, None)
    return float(values.mean()), low, high


def told(values: np.ndarray, sign: str = "") -> str:
    share, low, high = estimate(values)
    return f"{share:{sign}.1%}" + ("" if low is None else f" (95% interval {low:{sign}.1%} to {high:{sign}.1%})")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
