"""Kills a tiny run with SIGKILL at random moments, resumes it, and compares it with an uninterrupted run.

The suite runs a few trials; ``python tests/train/kill_trials.py 20`` runs the given number and prints each.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tiny_run import flags, summary, timeless, write_tasks

STEPS = 8
LONG_RUN: dict[str, Any] = {
    "run__max_steps": STEPS,
    "run__save_steps": 2,
    "run__eval_steps": 3,
    "eval__num_tasks": 1,
    "optim__steps_per_generation": 2,
    "optim__per_device_train_batch_size": 4,
    "optim__num_iterations": 2,
    "loss__beta": 0.02,
}


def run(arguments: list[str]) -> None:
    """The whole command, in a process of its own."""
    from kernel_coder.train.__main__ import main

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os._exit(main(arguments))


def processes() -> Any:
    """Processes fork from a server that has imported everything and computed nothing, so each starts fast."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kernel_coder.train.loop", "tiny_run"])
    return context


def finish(arguments: list[str]) -> int:
    process = processes().Process(target=run, args=(arguments,))
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


def kill_at(arguments: list[str], metrics: Path, lines: int, delay_s: float) -> bool:
    """Starts the run and kills it ``delay_s`` after the given number of logged steps. False if the run ended first."""
    process = processes().Process(target=run, args=(arguments,))
    process.start()
    while process.is_alive() and (metrics.read_bytes().count(b"\n") if metrics.exists() else 0) < lines:
        time.sleep(0.002)
    time.sleep(delay_s)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def trial(tasks: Path, straight: Path, run_dir: Path, seed: int) -> str:
    """Kills the run once or twice and resumes it. Raises AssertionError unless the two runs are equal."""
    choose = random.Random(seed)
    arguments = flags(tasks, run_dir, **LONG_RUN)
    said = []
    for _ in range(choose.choice([1, 1, 2])):
        lines, delay_s = choose.randrange(STEPS), choose.random() * 0.1
        killed = kill_at([*arguments, "--resume"], run_dir / "metrics.jsonl", lines, delay_s)
        said.append(f"{'killed' if killed else 'finished before the kill'} {delay_s * 1e3:.0f} ms after step {lines}")
    assert finish([*arguments, "--resume"]) == 0
    assert summary(run_dir)["weights_sha256"] == summary(straight)["weights_sha256"]
    assert timeless(run_dir) == timeless(straight)
    assert (run_dir / "samples.jsonl").read_bytes() == (straight / "samples.jsonl").read_bytes()
    return ", ".join(said)


def main(trials: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tasks = write_tasks(Path(folder) / "tasks")
        straight = Path(folder) / "straight"
        assert finish(flags(tasks, straight, **LONG_RUN)) == 0
        for seed in range(trials):
            said = trial(tasks, straight, Path(folder) / f"trial{seed}", seed)
            print(f"trial {seed + 1}/{trials}: {said}; same weights, metrics and samples", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
