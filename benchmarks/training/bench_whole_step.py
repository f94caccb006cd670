"""Whole GRPO steps of a large model, with as many real verdicts as answers: sampling, judging and updating.

    torchrun --nproc-per-node 4 benchmarks/training/bench_whole_step.py --tasks PAIRS.parquet --tokenizer FOLDER \\
        --answers 512 --tokens 256 --out steps.csv
    torchrun --nproc-per-node 2 benchmarks/training/bench_whole_step.py --small --tasks PAIRS.parquet  # on the CPU

The model has Qwen2.5-Coder-3B's shape and random weights, so its answers mean nothing and all have the longest length.
Training runs as it is, with one exception: instead of each answer, the judge gets the task's known solution with a
comment of its own in each kernel, so that every answer is compiled, checked and timed. Tasks need known solutions
(those of ``kernel-coder data build`` have). The rewards are therefore equal but for timing, and not of the answers.

A row has the medians of all steps but the first: the times of rank 0, and of each rank where they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.prompts import build_answer
from kernel_coder.run import distributed
from kernel_coder.tasks import Task
from kernel_coder.train.__main__ import main as train
from kernel_coder.train.verdicts import AnswerJudge

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_parallel import CASES, make_policy, write

GROUP = 8
"""Answers to a task."""

KERNEL = re.compile(r"^@triton\.jit\ndef .*?\):\n", re.MULTILINE | re.DOTALL)
"""The head of a Triton kernel, after which a comment may stand."""

PHASES = ("step", "gather", "rollout", "judge", "wait", "reward", "logprobs", "update")
"""The phases of a step in the metrics ``time/PHASE_s``."""


def judge_solutions() -> None:
    """Lets the judge of this process judge a task's solution instead of an answer, each time with another comment."""
    asking, number = AnswerJudge.asking, count()

    @contextmanager
    def patched(self: AnswerJudge, **options: Any) -> Iterator[Any]:
        with asking(self, **options) as ask:

            def solution(task: Task, answer: str) -> Any:
                assert ask is not None
                assert task.solution is not None
                comment = f"    # answer {next(number)} of process {os.getpid()}\n"
                return ask(task, build_answer(KERNEL.sub(lambda found: found[0] + comment, task.solution)))

            yield solution

    AnswerJudge.asking = patched  # type: ignore[method-assign, assignment]


def make_model(folder: Path, tokenizer: str | None, small: bool) -> None:
    """Writes the model with its tokenizer into the folder."""
    from transformers import AutoTokenizer

    words: Any = tiny_tokenizer() if tokenizer is None else AutoTokenizer.from_pretrained(tokenizer)
    policy = make_policy(CASES["3b"], torch.device("cpu" if small else "cuda"), small=small)
    policy.model.save_pretrained(folder)
    words.save_pretrained(folder)


def flags_of(options: argparse.Namespace, folder: Path) -> list[str]:
    """The command line of the training."""
    fields: dict[str, Any] = {
        "model.name_or_path": folder / "model",
        "model.gradient_checkpointing": "auto",
        "data.path": options.tasks,
        "data.prompt_template": "bare",
        "data.max_prompt_length": 1024,
        "rollout.num_generations": GROUP,
        "rollout.max_completion_length": options.tokens,
        "rewards": json.dumps([{"name": "correct"}, {"name": "speedup", "params": {"cap": 3.0}}]),
        "advantages.scale_rewards": "batch",
        "loss.mask_truncated_completions": "false",
        "judge.backend": "triton",
        "judge.workers": options.workers,
        "judge.checks": 3,
        "judge.families": json.dumps(["own", "normal"]),
        "judge.timed_calls": 20,
        "judge.timing_s": 1.0,
        "judge.profile": "false",
        "judge.null_candidates": "false",
        "judge.allow": json.dumps(["library_matmul"]),
        "optim.per_device_train_batch_size": options.micro,
        "optim.gradient_accumulation_steps": options.answers // options.micro,
        "optim.learning_rate": 1e-6,
        "parallel.sync_each_pass": "true",
        "run.output_dir": folder / "run",
        "run.max_steps": options.steps,
        "run.overwrite_output_dir": "true",
        "run.save_steps": 1000,
        "run.eval_on_start": "false",
    }
    if options.small:
        fields |= {"model.device": "cpu", "judge.device": "cpu", "judge.timing": "false"}
    return [part for name, value in fields.items() for part in (f"--{name}", str(value))]


def row_of(folder: Path, options: argparse.Namespace, size: int) -> dict[str, Any]:
    """The medians of the run's metrics."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "time/update_s" in line][1:]
    found = {f"{name}_s": [step[f"time/{name}_s"] for step in steps if f"time/{name}_s" in step] for name in PHASES}
    ranks: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            if name.startswith("time/rank"):
                ranks.setdefault(name.removeprefix("time/"), []).append(value)
    seconds = {name: f"{statistics.median(values):.2f}" if values else "" for name, values in found.items()}
    return {
        "model": "small" if options.small else "qwen2.5-coder-3b",
        "ranks": size,
        "answers": options.answers,
        "answer_tokens": options.tokens,
        "steps": len(steps),
        **seconds,
        "judged_correct": f"{statistics.median(step['judge/correct'] for step in steps):.3f}",
        "per_rank": " ".join(f"{name}:{statistics.median(values):.2f}" for name, values in sorted(ranks.items())),
        "peak_gib": "" if options.small else f"{torch.cuda.max_memory_allocated() / 2**30:.1f}",
        "device": "cpu" if options.small else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": options.commit,
        "command": f"torchrun --nproc-per-node {size} {Path(sys.argv[0]).name} --answers {options.answers} "
        f"--tokens {options.tokens} --steps {options.steps}",
    }


def main() -> int:
    """Runs the steps; rank 0 writes the row. Returns the exit code of the training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flag = parser.add_argument
    flag("--tasks", required=True, help="pairs with known solutions")
    flag("--tokenizer", help="folder with a tokenizer; default: one of bytes")
    flag("--answers", type=int, default=512, help="answers of a step, on all GPUs together")
    flag("--tokens", type=int, default=256, help="length of each answer")
    flag("--steps", type=int, default=3)
    flag("--micro", type=int, default=16, help="answers in a forward pass of one GPU")
    flag("--workers", type=int, default=12, help="candidates that each GPU's judge works on at once")
    flag("--folder", type=Path, help="folder for model and run; default: a temporary one")
    flag("--small", action="store_true", help="a tiny shape on the CPU")
    flag("--commit", default=os.environ.get("KC_COMMIT", ""))
    flag("--out", type=Path, help="CSV file to append to")
    options = parser.parse_args()
    if options.answers % options.micro or options.answers % GROUP:
        parser.error(f"--answers must be a multiple of --micro and of {GROUP}; got {options.answers}")
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    folder = options.folder or Path(tempfile.gettempdir()) / f"whole-step-{os.environ.get('TORCHELASTIC_RUN_ID', '')}"
    with distributed.joined():
        if rank == 0:
            make_model(folder / "model", options.tokenizer, options.small)
            if not options.small:
                torch.cuda.empty_cache()
        distributed.barrier()
        judge_solutions()
        code = train(flags_of(options, folder))
    if rank == 0 and code == 0:
        row = row_of(folder, options, size)
        print(row, flush=True)
        write(options.out, row)
    return code


if __name__ == "__main__":
    distributed.end_process(main())
