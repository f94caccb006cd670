"""TRL's own trainer learns from this project's verdicts: held-out rate before and after, on two CPU cores.

    python benchmarks/training/bench_trl.py                    # rows into results/trl_cpu.csv
    python benchmarks/training/bench_trl.py --trainer fused    # with FusedGRPOTrainer
    python benchmarks/training/bench_trl.py --trainer ours     # kernel-coder train with configs/nano.yaml

The model is kernel-coder-nano, the tasks and all settings are those of configs/nano.yaml: 20 steps of 48 answers. TRL
draws the tasks at random, where that recipe prefers those that are solved sometimes. `heldout_before` and
`heldout_after` are the shares of correct answers to `heldout_tasks` tasks of packaged:pointwise_heldout, one answer
each at temperature 1, found by ``kernel-coder evaluate``. `step_s` is the median duration of a step.

It needs the extras train and serve, and trl. Everything runs offline.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

HERE = Path(__file__).resolve()
RESULTS = HERE.parents[1] / "results"
REWARDS = [
    {"name": "format", "weight": 0.1},
    {"name": "compiles", "weight": 0.2},
    {"name": "correct", "weight": 1.0},
]
JUDGE = {"timing": False, "checks": 2, "families": ("own", "normal"), "null_candidates": False, "seed": 0, "workers": 1}


def heldout(model: str, tasks: int, folder: Path) -> float:
    """The share of correct answers."""
    flags = ["--judge.timing", "false", "--judge.checks", "2", "--judge.null-candidates", "false"]
    command = [sys.executable, "-m", "kernel_coder.evaluate", "--model", model, "--device", "cpu"]
    command += ["--tasks", "packaged:pointwise_heldout", "--limit", str(tasks), "--prompt-template", "nano"]
    command += ["--temperature", "1", "--top-p", "1", "--max-new-tokens", "384", "--num-threads", "1"]
    flags += ["--judge.workers", "1", "--batch-size", "64"]
    subprocess.run([*command, *flags, "--output", str(folder)], check=True)
    lines = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    return sum(one["verdict"]["outcome"] == "correct" for one in lines) / tasks


def train_with_trl(kind: str, steps: int, folder: Path) -> list[float]:
    """Train and save; the seconds of each step."""
    import torch
    from datasets import Dataset
    from kernel_coder.integrations.scoring import rows
    from kernel_coder.integrations.trl import JudgedReward
    from kernel_coder.judge import Judge, JudgeConfig
    from kernel_coder.policy.model import NANO_FOLDER
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        seconds: list[float] = []  # noqa: RUF012
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)

    trainer_class: Any = GRPOTrainer
    if kind == "fused":
        from kernel_coder.integrations.trl_trainer import FusedGRPOTrainer as trainer_class
    torch.set_num_threads(1)
    config = GRPOConfig(
        output_dir=str(folder / "run"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_steps=steps,
        num_generations=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=6,
        max_completion_length=384,
        learning_rate=3e-4,
        adam_beta2=0.99,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        loss_type="dapo",
        temperature=1.0,
        seed=0,
    )
    with Judge("cpu", "triton", config=JudgeConfig(**JUDGE)) as judge:
        trainer = trainer_class(
            model=AutoModelForCausalLM.from_pretrained(NANO_FOLDER, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(NANO_FOLDER),
            reward_funcs=JudgedReward(judge, REWARDS),
            train_dataset=Dataset.from_list(rows("packaged:pointwise", "nano")),
            args=config,
            callbacks=[Clock()],
        )
        trainer.train()
    trainer.save_model(str(folder / "model"))
    trainer.processing_class.save_pretrained(str(folder / "model"))
    return Clock.seconds


def train_with_ours(steps: int, folder: Path) -> list[float]:
    """The same with this project's loop."""
    command = [sys.executable, "-m", "kernel_coder.train", "--config", str(HERE.parents[2] / "configs" / "nano.yaml")]
    command += ["--run.output_dir", str(folder / "run"), "--run.max_steps", str(steps), "--run.eval_on_start", "false"]
    command += ["--run.eval_steps", str(steps + 1), "--run.save_steps", str(steps), "--judge.workers", "1"]
    subprocess.run([*command, "--eval.num_tasks", "1"], check=True)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    (checkpoint,) = (folder / "run").glob("checkpoint-*")
    (folder / "model").symlink_to(checkpoint)
    return [line["time/step_s"] for line in lines if "time/step_s" in line]


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", choices=("trl", "fused", "ours"), default="trl")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=128, help="held-out tasks")
    parser.add_argument("--out", default="trl_cpu.csv", help="file in benchmarks/results; a row is added to it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = heldout("nano", options.tasks, folder / "before")
        if options.trainer == "ours":
            seconds = train_with_ours(options.steps, folder)
        else:
            seconds = train_with_trl(options.trainer, options.steps, folder)
        after = heldout(str(folder / "model"), options.tasks, folder / "after")
    row = {
        "trainer": options.trainer,
        "steps": options.steps,
        "answers": 48 * options.steps,
        "heldout_tasks": options.tasks,
        "heldout_before": round(before, 4),
        "heldout_after": round(after, 4),
        "step_s": round(statistics.median(seconds), 1) if seconds else "",
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit(),
        "command": " ".join(["python benchmarks/training/bench_trl.py", *sys.argv[1:]]),
    }
    print(json.dumps(row))
    path = RESULTS / options.out
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
