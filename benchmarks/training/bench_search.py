"""Measures search strategies at equal budgets, and rounds of RLoop against reinforcement learning alone.

    python benchmarks/training/bench_search.py strategies              # nano, on the CPU: results/search_cpu.csv
    python benchmarks/training/bench_search.py curves --keep FOLDER    # of strategies that were ended by hand
    python benchmarks/training/bench_search.py answers --keep FOLDER   # of strategies: results/search_answers_cpu.csv
    python benchmarks/training/bench_search.py loop --seeds 0 1 2 3 4  # results/loop_cpu.csv

`strategies` runs `kernel-coder evaluate --strategy`: a row is a strategy after a number of judged candidates, with the
share of solved tasks and, where something was timed, the geometric mean of the best speedup (an unsolved task counts as
1). Interpreted kernels have no speed, so there a search ends with its first correct kernel. On a GPU the judge is that
of configs/smollm2-135m.yaml.

Each row counts different candidates, or all answers: a model that repeats itself gives more answers than candidates.

`answers` reads the searches that `strategies --keep FOLDER` left. A row says, for a strategy and for prompts that show
the module alone, a wrong answer or a correct one, how many answers are correct, and how many are faster than the shown
one (by the estimate, and with an interval that lies above the shown answer's).

`loop` runs configs/nano-loop.yaml or another --config, and reinforcement learning with the same recipe and the same
number of judged answers; both are evaluated on the same held-out tasks. A row is one policy: before, after each round,
and after the plain run. `--filters concise random longest` repeats the loop with each filter, at the same number of
kept answers. `--ways loop` or `--ways plain` runs only one of the two.

--keep FOLDER keeps the runs; the same command then continues them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from kernel_coder.evaluate.answers import candidate
from kernel_coder.evaluate.run import evaluate
from kernel_coder.loop.config import LoopConfig, load_config
from kernel_coder.loop.rounds import Loop, evaluation_facts, rl_facts
from kernel_coder.refine.compare import compare, parse_compare, progress_of, results_of
from kernel_coder.refine.trajectory import Trajectory
from kernel_coder.train.loop import train

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that all benchmarks share

from trials import RESULTS, ROOT, append, commit

JUDGE = shlex.split(
    "--judge.timing false --judge.profile false --judge.checks 2 --judge.null-candidates false "
    """--judge.families '["own", "normal"]'"""
)
JUDGE_ON_GPU = shlex.split(
    "--judge.profile false --judge.checks 3 --judge.null-candidates false --judge.timed-calls 20 --judge.timing-s 1.0 "
    """--judge.timeout-s 20 --judge.allow '["library_matmul"]'"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("strategies", "curves", "answers", "loop"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--model", default="nano")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--strategies", default="serial,parallel,turns,evolve")
    parser.add_argument("--tasks", default="packaged:pointwise_heldout", help="task set of strategies")
    parser.add_argument("--count", type=int, default=20, help="number of tasks of strategies")
    parser.add_argument("--evaluations", type=int, default=64, help="budget of each search, in judged candidates")
    parser.add_argument("--flags", default="", help="more flags: of refine, or of kernel_coder.loop")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "nano-loop.yaml", help="recipe of the loop")
    parser.add_argument("--ways", nargs="+", choices=("loop", "plain"), default=["loop", "plain"])
    parser.add_argument("--filters", nargs="+", default=["concise"], help="filters of the loop")
    parser.add_argument("--workers", type=int, default=1, help="candidates judged at a time")
    parser.add_argument("--keep", type=Path, help="folder for the runs; default: they are removed")
    parser.add_argument("--commit", default=None, help="default: that of the checkout")
    parser.add_argument("--out", type=Path, help="CSV file; default: the one in benchmarks/results")
    options = parser.parse_args()
    if options.what in ("answers", "curves") and not (options.keep and (options.keep / "strategies").is_dir()):
        parser.error(f"{options.what} needs --keep FOLDER, the folder that `strategies --keep FOLDER` wrote")
    name, rows_of = {
        "strategies": ("search", strategies),
        "curves": ("search", curves),
        "answers": ("search_answers", answers),
        "loop": ("loop", loops),
    }[options.what]
    out = options.out or RESULTS / f"{name}_{options.device}.csv"
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        for row in rows_of(root, options):
            append(out, row | facts(options))


def facts(options: argparse.Namespace) -> dict[str, Any]:
    """The last columns of every row."""
    given = [word for word in sys.argv[1:] if word]
    hidden = {"--keep", "--commit", "--out"}
    shown = [word for k, word in enumerate(given) if word not in hidden and (k == 0 or given[k - 1] not in hidden)]
    return {
        "model": Path(options.model).name,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": options.commit or commit(),
        "command": f"python benchmarks/training/bench_search.py {shlex.join(shown)}",
    }


def strategies(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each strategy and each number of candidates."""
    flags = ["--strategy", options.strategies, "--tasks", options.tasks, "--limit", str(options.count)]
    flags += ["--evaluations", str(options.evaluations), "--seeds", ",".join(map(str, options.seeds))]
    flags += ["--output", str(root / "strategies"), "--model", options.model, "--device", options.device]
    flags += [*JUDGE, "--stop-when-correct", "--num-threads", "1"] if options.device == "cpu" else JUDGE_ON_GPU
    config, _ = parse_compare([*flags, "--judge.workers", str(options.workers), *shlex.split(options.flags)])
    found = compare(config, resume=options.keep is not None, say=lambda line: print(line, flush=True))
    for name, one in found["strategies"].items():
        yield from rows_of_strategy(name, one, options)


def curves(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of `strategies` for a comparison that was ended by hand, from the searches in its folder. All
    searches count as unfinished, so each curve ends where the shortest search does."""
    for strategy in sorted((root / "strategies").iterdir()):
        found = []
        for path in sorted(strategy.glob("seed-*/*/trajectory.jsonl")):
            first = json.loads(path.read_bytes().splitlines()[0])
            with Trajectory(path.parent, first["task_hash"], resume=True) as trajectory:
                seed = int(path.parent.parent.name.removeprefix("seed-"))
                found.append(progress_of(trajectory, path.parent.name, seed, finished=False))
        yield from rows_of_strategy(strategy.name, results_of(found, options.evaluations), options)


def rows_of_strategy(name: str, results: dict[str, Any], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of a strategy's two curves."""
    counts = {key: results[key] for key in ("tasks", "searches", "answers", "candidates", "tokens")}
    for counted, curve in (("candidates", results["curve"]), ("answers", results["answers_curve"])):
        for row in curve:
            yield {"strategy": name, "counted": counted, **row, **counts, "task_set": options.tasks}


def answers(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each strategy and each kind of prompt, over all searches of a folder."""
    for strategy in sorted((root / "strategies").iterdir()):
        counts: dict[str, Counter[str]] = {}
        for path in sorted(strategy.glob("seed-*/*/trajectory.jsonl")):
            count_answers(path, counts)
        for kind, found in sorted(counts.items()):
            counted = {key: found[key] for key in ("answers", "different", "correct", "faster", "surely_faster")}
            yield {"strategy": strategy.name, "prompt_shows": kind, **counted}


def count_answers(path: Path, counts: dict[str, Counter[str]]) -> None:
    """Add the judged answers of one search to the counts, which are kept by what the end of the prompt shows."""
    first = json.loads(path.read_bytes().splitlines()[0])
    with Trajectory(path.parent, first["task_hash"], resume=True) as trajectory:
        known = sorted((one for one in trajectory.attempts.values() if one.is_judged), key=lambda one: one.key)
    by_code, codes = {one.code: one.verdict for one in known}, set()
    for one in known:
        shown = [message["content"] for message in one.messages if message["role"] == "assistant"]
        before = by_code.get(candidate(shown[-1])[0]) if shown else None  # an answer that was cut off has no verdict
        is_correct = before is not None and before.correct
        kind = ("a correct answer" if is_correct else "a wrong answer") if shown else "the module alone"
        count = counts.setdefault(kind, Counter())
        count["answers"] += 1
        count["different"] += one.code not in codes
        count["correct"] += one.verdict.correct
        codes.add(one.code)
        if before and before.speedup and one.verdict.speedup:
            count["faster"] += one.verdict.speedup > before.speedup
            count["surely_faster"] += one.verdict.speedup_low > before.speedup_high


def loops(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each policy of each loop, and for that of the plain run."""
    for seed in options.seeds:
        for way in options.filters:
            flags = ["--run.output_dir", str(root / f"loop-{way}-{seed}"), "--run.seed", str(seed), "--keep.by", way]
            flags += ["--model", options.model]
            config = load_config(options.config, [*flags, *shlex.split(options.flags)])
            if "loop" not in options.ways:
                break
            loop = Loop(config, lambda line: print(line, flush=True))
            loop.open(resume=options.keep is not None)
            if loop.run() == "stopped":
                sys.exit(75)
            judged = 0
            for one in loop.rounds():
                judged += one.rl["answers"] if one.rl else 0
                if one.evaluate:
                    kept = one.keep["kept"] if one.keep else None
                    yield {"way": f"loop, {way}", "seed": seed, "round": one.number, "judged": judged, "kept": kept} | (
                        columns(one.evaluate)
                    )
        if "plain" in options.ways:
            yield plain(root / f"plain-{seed}", config, seed)


def plain(folder: Path, config: LoopConfig, seed: int) -> dict[str, Any]:
    """The row of reinforcement learning alone, for as many steps as all rounds have together."""
    own = config.train_config(config.model, folder / "rl", 1)
    steps = own.run.max_steps * config.run.rounds
    own = own.model_copy(update={"run": own.run.model_copy(update={"max_steps": steps, "seed": seed + 1})})
    result = train(own, resume="auto")
    policy = json.loads(result.summary.read_text())["checkpoint"]
    found = evaluation_facts(evaluate(config.evaluate_config(policy, folder / "evaluate"), resume=True))
    judged = rl_facts(folder / "rl")["answers"]
    return {"way": "plain", "seed": seed, "round": config.run.rounds, "judged": judged, "kept": None} | columns(found)


def columns(found: dict[str, Any]) -> dict[str, Any]:
    """pass@1, pass@k and variety of a policy."""
    most = max(found["pass"], key=int)
    row: dict[str, Any] = {"k": int(most)}
    for name, values in (("pass_1", found["pass"]["1"]), ("pass_k", found["pass"][most])):
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
    return row | {
        "different_answers": found["different"],
        "correct_texts": found["different_correct"],
        "tasks": found["tasks"],
        "samples": found["samples"],
    }


if __name__ == "__main__":
    main()
