"""What a budget of answers gives one module at a time: `refine` on held-out tasks, one answer after the other or at once.

    python benchmarks/bench_refine.py                                    # nano, 20 tasks on the CPU: results/refine_cpu.csv
    python benchmarks/bench_refine.py --parallel 30 --seeds 0 1 2 --model FOLDER --seconds 480
    python benchmarks/bench_refine.py --device cuda --gpus 4 --parallel 32 --tasks packaged:heldout --model FOLDER

Each search is `python -m kernel_coder.refine` in a process of its own, and ends with the first correct kernel. A plan is
a strategy with its rounds and the answers in each: `serial:8x1` tells every verdict to the next answer, `parallel:1x8`
asks eight times without telling anything, `best_of_turns:4x2` shows what was best so far. All have the same budget. A
row is the share of tasks that are solved within so many answers and so many evaluations (different candidates; an answer
without code is none), in the order of the answers, with intervals over tasks; the last lines compare plans task by task.
What --seconds cuts short counts as not solved beyond its last answer (column `cut`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_coder.evaluate.metrics import intervals
from kernel_coder.tasks import Task, load_tasks
from trials import RESULTS, Trial, add_flags, append, commit, fresh, run_all

PLANS = ("serial:8x1", "parallel:1x8", "best_of_turns:4x2")
FOR_NANO = "packaged:pointwise_heldout"
NANO = [*("--prompt-template", "nano", "--feedback-template", "nano", "--earlier-reasoning", "keep"), "--context-turns"]
NANO += ["1", "--max-new-tokens", "384", "--num-threads", "1"]
JUDGE = ["--judge.timing", "false", "--judge.profile", "false", "--judge.checks", "2", "--judge.null-candidates", "false"]
JUDGE += ["--judge.families", '["own", "normal"]']
NEVER = 1 << 30


@dataclass(frozen=True)
class Search:
    """A search that has begun: after how many answers, and evaluations, the task was solved."""

    answers: int
    evaluations: int
    tokens: int
    is_cut: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", nargs="+", default=list(PLANS), help="strategy:ROUNDSxANSWERS")
    parser.add_argument("--tasks", default=FOR_NANO, help="as evaluate takes them")
    parser.add_argument("--count", type=int, default=20, help="of tasks, chosen by a hash of their ids")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="searches of each task and plan")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpus", type=int, default=1, help="searches take turns on so many")
    parser.add_argument("--flags", default="", help="further flags of every search")
    add_flags(parser, RESULTS / "refine_DEVICE.csv")
    options = parser.parse_args()
    options.commit = options.commit or commit()
    options.out = Path(str(options.out).replace("DEVICE", options.device))
    deadline = time.monotonic() + options.seconds
    _, tasks = load_tasks(options.tasks).hold_out(options.count)
    with tempfile.TemporaryDirectory() as temporary:
        root = fresh((options.keep or Path(temporary)) / "searches")
        trials = make_trials(root, list(tasks), options)
        ended = set()
        found = run_all(trials, parallel=options.parallel, cores=options.cores, deadline=deadline)
        for trial, seconds in found:
            ended.add(trial.name)
            print(f"{trial.name}: {'solved' if (trial.folder / 'out' / 'best.py').exists() else 'not solved'}, {seconds:.0f} s", flush=True)
        names = [task.id.replace("/", "-") for task in tasks]
        results = {
            (plan, name, seed): read(root / name_of(plan, name, seed) / "out", name_of(plan, name, seed) not in ended)
            for plan in options.plans
            for name in names
            for seed in options.seeds
        }
    # Only what every plan has begun, so that each is about the same tasks.
    known = [name for name in names if all(results[plan, name, seed] for plan in options.plans for seed in options.seeds)]
    if len(known) < len(names):
        print(f"{len(names) - len(known)} tasks are left out: not every plan has begun them")
    solved = {}
    for plan in options.plans:
        searches = [[results[plan, name, seed] for seed in options.seeds] for name in known]
        for row, curve in rows_of(plan, searches, options):
            append(options.out, row)
            solved[plan] = curve  # the last one: of the whole budget
            print(f"{plan} within {row['budget']}: {row['solved_by_answers']:.1%} ({row['solved_by_answers_low']:.1%} to {row['solved_by_answers_high']:.1%}) of answers, {row['solved_by_evaluations']:.1%} of evaluations")
    for other in options.plans[1:]:
        share, low, high = estimate(solved[options.plans[0]] - solved[other])
        print(f"{options.plans[0]} - {other}: {share:+.1%} (95% interval {low:+.1%} to {high:+.1%})")
