"""Measures what further turns and their estimator give: TRLOO and GRPO with the same budget, held-out tasks by turn.

    python benchmarks/training/bench_turns.py                       # 2 estimators x 3 seeds: results/turns_cpu.csv
    python benchmarks/training/bench_turns.py --seeds 0 1 2 3 4 --parallel 10 --cores 4 --model FOLDER --seconds 560
    python benchmarks/training/bench_turns.py --variants trloo --seeds 0 \
        --flags "--run.max_steps 2 --run.eval_steps 2"

Each run is a process with `configs/nano-turns.yaml`; the variants are flags. `grpo` compares each return with the mean
of its turn's group, including itself, divided by the standard deviation; `kevin` with that of all turns of the group.
Each held-out task has several conversations, which allows a comparison without feedback: `samples` is the probability
that one of several first answers is correct, with as many first answers as a conversation has turns, and
`turns_over_samples` is the advantage of conversations over it, task by task. The intervals of a row are over tasks,
those of the last lines are Student's t over seeds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_coder.evaluate.metrics import intervals, pass_at_k
from kernel_coder.report.learned import held_out
from kernel_coder.train.config import load_config

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from trials import RESULTS, ROOT, Trial, add_flags, append, commit, fresh, over_seeds, run_all

CONFIG = ROOT / "configs" / "nano-turns.yaml"
VARIANTS = {
    "trloo": ["--advantages.mode", "trloo"],
    "grpo": ["--advantages.mode", "grpo"],
    "kevin": ["--advantages.mode", "grpo", "--advantages.baseline", "group"],
}
MOMENTS = ("before", "after")
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["trloo", "grpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--model", default="nano", help="folder of the model to train")
    parser.add_argument("--flags", default="", help="more flags for every run")
    add_flags(parser, RESULTS / "turns_cpu.csv")
    options = parser.parse_args()
    options.commit = options.commit or commit()
    deadline = time.monotonic() + options.seconds
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        # Run the variants of a seed in a row, so that a run that is cut off leaves complete pairs.
        names = [(variant, seed) for seed in options.seeds for variant in options.variants]
        trials = {}
        for variant, seed in names:
            folder = fresh((options.keep or Path(temporary)) / f"{variant}-{seed}")
            trials[folder.name] = Trial(folder.name, command(folder / "run", variant, seed, options), folder)
        found = run_all(list(trials.values()), parallel=options.parallel, cores=options.cores, deadline=deadline)
        for trial, _ in found:
            variant, _, seed = trial.name.partition("-")
            rows.append(row_of(trial.folder / "run", variant, int(seed), options))
            append(options.out, rows[-1])
            print(f"{trial.name}: {told(rows[-1])}", flush=True)
    for line in conclusions(rows, options.variants):
        print(line)


def command(run_dir: Path, variant: str, seed: int, options: argparse.Namespace) -> list[str]:
    flags = ["--run.output_dir", str(run_dir), "--run.seed", str(seed), "--model.name_or_path", options.model]
    flags += ["--run.overwrite_output_dir", "true", *VARIANTS[variant], *shlex.split(options.flags)]
    return [sys.executable, "-m", "kernel_coder.train", "--config", str(CONFIG), *flags]


def row_of(run_dir: Path, variant: str, seed: int, options: argparse.Namespace) -> Row:
    found = json.loads((run_dir / "summary.json").read_text())
    config = load_config(run_dir / "config.yaml")
    turns = config.rollout.max_turns
    rates = {name: value for name, value in found.items() if name.startswith(("heldout_correct_by", "heldout_gain"))}
    rates = {name.removeprefix("heldout_"): value for name, value in rates.items()}
    lines = held_out(run_dir, (0, found["steps"]))
    for moment, step in zip(MOMENTS, (0, found["steps"]), strict=True):
        rates |= beside_samples(lines[step], turns, moment)
    same = f"--variants {variant} --seeds {seed} --model {Path(options.model).name}"
    return {
        "variant": variant,
        "seed": seed,
        "model": Path(options.model).name,
        "turns": turns,
        **rates,
        "reward_first": found["reward_first"],
        "reward_last": found["reward_last"],
        "heldout_tasks": found["held_out_tasks"],
        "conversations_per_task": config.eval.num_generations,
        "steps": found["steps"],
        "conversations_per_step": config.generation_batch_size,
        "learning_rate": config.optim.learning_rate,
        "context": config.rollout.context,
        "seconds_train": found["seconds_train"],
        "device": "cpu",
        "cores": options.cores,
        "torch": torch.__version__,
        "commit": options.commit,
        "command": f"python benchmarks/training/bench_turns.py {same}"
        + (f" --flags {shlex.quote(options.flags)}" if options.flags else ""),
    }


def beside_samples(lines: Sequence[Mapping[str, Any]], turns: int, moment: str) -> Row:
    """Conversations with a number of turns minus as many first answers; None if a task has fewer conversations."""
    firsts, solved = defaultdict[str, list[bool]](list), defaultdict[str, list[bool]](list)
    for line in lines:
        outcomes = [turn["verdict"]["outcome"] for turn in line.get("turns", [line])]
        if outcomes[0] != "harness_failed":
            firsts[line["task"]].append(outcomes[0] == "correct")
            solved[line["task"]].append("correct" in outcomes)
    tasks = [task for task, answers in firsts.items() if len(answers) >= turns]
    sampled = [pass_at_k(len(firsts[task]), sum(firsts[task]), turns) for task in tasks]
    better = [sum(solved[task]) / len(solved[task]) - one for task, one in zip(tasks, sampled, strict=True)]
    row: Row = {}
    for name, values in (("samples", sampled), ("turns_over_samples", better)):
        value = sum(values) / len(values) if values else None
        bounds = intervals(np.array(values)[:, None], np.ones((len(values), 1)))[0] if len(values) > 1 else None
        row |= {f"{name}_{moment}": value}
        row |= {f"{name}_{moment}_low": bounds and bounds[0], f"{name}_{moment}_high": bounds and bounds[1]}
    return row


def told(row: Row) -> str:
    by_turn = {
        moment: ", ".join(f"{row[f'correct_by_turn_{t + 1}_{moment}']:.1%}" for t in range(row["turns"]))
        for moment in MOMENTS
    }
    further = f"{row['gain_of_turns']:+.1%} ({row['gain_of_turns_low']:+.1%} to {row['gain_of_turns_high']:+.1%})"
    return (
        f"solved by turn {by_turn['before']} before, {by_turn['after']} after; turns give {further}; "
        f"{row['turns']} samples {row['samples_after']:.1%}; {row['seconds_train']:.0f} s"
    )


def conclusions(rows: Sequence[Row], variants: Sequence[str]) -> list[str]:
    """Prints means over seeds with intervals, and the advantage of TRLOO over GRPO, seed by seed."""
    lines = []
    if not rows:
        return ["no run came to its end"]
    last = f"correct_by_turn_{rows[0]['turns']}"
    columns = ["correct_by_turn_1_before", f"{last}_before", "correct_by_turn_1_after", f"{last}_after"]
    columns += ["gain_of_turns", "samples_after", "turns_over_samples_after"]
    for variant in variants:
        mine = [row for row in rows if row["variant"] == variant]
        for column in columns if mine else []:
            sign = "+" if column.startswith(("gain", "turns_over")) else ""
            lines.append(f"{variant} {column}: {over_seeds([row[column] for row in mine], sign)}")
    by_name = {(row["variant"], row["seed"]): row for row in rows}
    pairs = [
        (row, by_name["grpo", row["seed"]])
        for row in rows
        if row["variant"] == "trloo" and ("grpo", row["seed"]) in by_name
    ]
    for column in ("correct_by_turn_1_after", f"{last}_after", "gain_of_turns") if pairs else ():
        lines.append(f"trloo - grpo, {column}: {over_seeds([a[column] - b[column] for a, b in pairs])}")
    return lines


if __name__ == "__main__":
    main()
