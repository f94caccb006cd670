"""The settings and the flags of the real run."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trials import RESULTS

import real_run

HELD_OUT = ("layer_norm", "bmm", "residual", "loss")
"""Families that the recipes leave out; rms_norm, group_norm, matmul, attention, elementwise and reduction are kept."""

FAMILY_TASKS = "packaged:heldout_families"
"""Tasks of these families, and of the three that the generator never uses for training."""

SETS = ("compositions", "families", "kernelbench")
MODELS = ("base", "sft", "rl")

RANGE = (0.40, 0.75)
"""Range of the warmed-up model's held-out correct rate in which reinforcement learning can change it both ways."""

UNTIMED = 0.05
"""Up to this share of answers, correct ones without a measurement are left out of fast_p; their number is reported."""

ASKED = {
    "prompt-template": "nano",
    "temperature": "1.0",
    "remember": "true",
    "report-samples": "2",
    "judge.profile": "false",
    "judge.timed-calls": "20",
    "judge.timing-s": "1.0",
}
OF_GENERATED = {"top-p": "1.0", "judge.checks": "3", "judge.null-candidates": "false", "judge.timeout-s": "20"}
OF_KERNELBENCH = {"top-p": "0.97", "samples": "1", "seeds": "0", "pass-at": "1", "judge.timeout-s": "60"}
OF_KERNELBENCH |= {"judge.families": "own,normal", "judge.hidden-shapes": "false", "judge.null-candidates": "false"}
"""KernelBench itself checks only a task's own inputs. Preparing one of its tasks for all our inputs would take 10 s."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=real_run.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flag = parser.add_argument
    flag("--model", required=True, help="the base model: a folder, or nano")
    flag("--gguf-file", help="name of a GGUF file in the model's folder")
    flag("--pairs", required=True, help="parquet file with the pairs of the warm-up")
    flag("--kernelbench", help="copy of KernelBench; default: KernelBench is left out")
    flag("--work", type=Path, required=True, help="folder of runs and evaluations")
    flag("--out", type=Path, help="folder for copies of the results; default: WORK/out")
    flag("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    flag("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: for a rehearsal")
    flag("--train-gpu", default="0", help="GPU that trains and samples")
    flag("--judge-gpus", default="1,2,3", help="GPUs that judge; the last one evaluates during the training")
    flag("--rl-judge-gpus", help="GPUs that judge in training; default: all judge GPUs but the last one")
    flag("--side-gpu", help="if one GPU trains and judges: a second one, for evaluations of the warmed-up model")
    flag("--workers", type=int, default=16, help="number of candidates judged at once on each GPU")
    flag("--kernelbench-workers", type=int, default=4, help="the same for KernelBench, whose tasks are large")
    flag("--sft-config", type=Path, default=Path("configs/smollm2-135m-sft.yaml"), help="recipe of the warm-up")
    flag("--rl-config", type=Path, default=Path("configs/smollm2-135m.yaml"), help="recipe of reinforcement learning")
    flag("--sft-steps", type=int, default=400, help="highest number of updates in the warm-up")
    flag("--target", type=float, help="held-out correct rate at which the warm-up ends; default: it uses all steps")
    flag("--rl-steps", type=int, default=60, help="highest number of steps of reinforcement learning")
    flag("--straight", action="store_true", help="do not stop and resume reinforcement learning halfway")
    flag("--samples", type=int, default=3, help="answers to each task with each seed")
    flag("--seeds", default="0,1,2", help="seeds of the evaluations")
    flag("--pass-at", default="1,8", help="values of k for pass@k")
    flag("--tasks", type=int, default=128, help="number of held-out compositions")
    flag("--family-tasks", type=int, default=63, help="number of tasks of held-out families")
    flag("--kernelbench-tasks", type=int, default=100, help="number of KernelBench tasks")
    flag("--max-new-tokens", type=int, default=1088, help="length limit of an answer, in tokens")
    flag("--seconds", type=float, default=900.0, help="time for everything, in seconds")
    flag("--stop-after", type=float, default=float("inf"), help="end this process after this many seconds")
    flag("--sft-seconds", type=float, default=220.0, help="time limit of the warm-up, in seconds")
    flag("--rl-seconds", type=float, default=420.0, help="time limit of reinforcement learning, in seconds")
    flag("--kernelbench-seconds", type=float, default=150.0, help="time limit of each KernelBench evaluation")
    flag("--reserve", type=float, default=190.0, help="seconds kept for the stages after reinforcement learning")
    flag("--tail", type=float, default=60.0, help="seconds kept for the stages after the evaluations")
    flag("--sft-flags", default="", help="more flags for the warm-up; they override those of this recipe")
    flag("--rl-flags", default="", help="the same for reinforcement learning")
    flag("--evaluate-flags", default="", help="the same for the evaluations")
    flag("--commit", default=os.environ.get("KC_COMMIT"), help="commit in the rows; default: that of the checkout")
    options = parser.parse_args(arguments)
    if options.side_gpu is not None and options.judge_gpus != options.train_gpu:
        parser.error(
            "--side-gpu is for one GPU that trains and judges, so --judge-gpus must be the same as --train-gpu; "
            f"got {options.judge_gpus} and {options.train_gpu}"
        )
    return options


def flags_of(text: str) -> dict[str, str]:
    """The flags in a text, as names and values.

    >>> flags_of("--run.max_steps 4 --limit=2")
    {'run.max_steps': '4', 'limit': '2'}
    """
    words = shlex.split(text.replace("=", " "))
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def words_of(flags: Mapping[str, Any]) -> list[str]:
    """The flags as words of a command line."""
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]
