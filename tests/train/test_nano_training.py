"""A short `make train` with the packaged model, packaged tasks and the judge; and the packaged model by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_coder import ops
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.models.nano import MAX_BYTES
from kernel_coder.policy.config import ModelConfig
from kernel_coder.policy.model import NANO_FOLDER, load_policy
from kernel_coder.prompts import build_messages, encode_prompt
from kernel_coder.rollout import Sampling
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.tasks import load_tasks
from tiny_run import records, summary

ROOT = Path(__file__).parents[2]
SHORT = {
    "run.max_steps": 1,
    "run.eval_steps": 1,
    "rollout.num_generations": 4,
    "rollout.max_completion_length": 320,
    "optim.per_device_train_batch_size": 8,
    "optim.gradient_accumulation_steps": 1,
    "eval.num_tasks": 4,
}


def run(folder: Path) -> dict[str, Any]:
    """`make train` with the environment of this test instead of .venv, so that nothing is installed."""
    flags = " ".join(f"--{name} {value}" for name, value in SHORT.items())
    command = ["make", "train", f"BIN={Path(sys.executable).parent}", f"RUN={folder}", f"FLAGS={flags}"]
    done = subprocess.run([*command, "-o", ".venv/.built"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return summary(folder)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano") / "run"
    run(folder)
    return folder


@pytest.mark.slow
def test_summary_of_make_train_has_rates_gain_and_seconds(run_dir: Path) -> None:
    found = summary(run_dir)
    for name in ("before", "after"):
        rate, low, high = (found[f"heldout_correct_{name}{end}"] for end in ("", "_low", "_high"))
        assert 0 <= low <= rate <= high <= 1
    assert found["heldout_correct_gain"] == found["heldout_correct_after"] - found["heldout_correct_before"]
    assert found["seconds_train"] > 0
    assert found["model"] == "nano"
    assert found["data"] == "packaged:pointwise"


@pytest.mark.slow
def test_answers_of_make_train_are_judged(run_dir: Path) -> None:
    lines = records(run_dir / "samples.jsonl")
    assert len(lines) == 4 + 8 + 4
    outcomes = {line["verdict"]["outcome"] for line in lines}
    assert not outcomes & {"harness_failed", "timeout"}


@pytest.mark.long  # test_resume.py compares tiny runs bit by bit
@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(run_dir: Path, tmp_path: Path) -> None:
    again, first = run(tmp_path / "run"), summary(run_dir)
    clock = ("seconds_train", "checkpoint", "finished_at")
    assert {k: v for k, v in again.items() if k not in clock} == {k: v for k, v in first.items() if k not in clock}


def test_files_of_nano_stay_below_their_size_limits() -> None:
    for name, most in MAX_BYTES.items():
        assert 0 < (NANO_FOLDER / name).stat().st_size <= most
    assert "Apache-2.0" in (NANO_FOLDER / "README.md").read_text()


@pytest.mark.slow
def test_nano_by_name_writes_correct_kernels_for_held_out_tasks() -> None:
    policy = load_policy(ModelConfig(name_or_path="nano", device="cpu"))
    tasks = list(load_tasks("packaged:pointwise_heldout", limit=8))
    prompts = [encode_prompt(policy.tokenizer, build_messages(task, "nano")) for task in tasks]
    sampling = Sampling(max_completion_length=384, temperature=0.0)
    turns = TransformersEngine(policy.model, policy.tokenizer).generate(prompts, sampling, [0] * len(tasks))
    codes = [ops.parse_response(turn.text).code for turn in turns]
    pairs = [(task, code) for task, code in zip(tasks, codes, strict=True) if code is not None]
    with Judge("cpu", "triton", config=JudgeConfig(timing=False, checks=2)) as judge:
        assert any(verdict.correct for verdict in judge.evaluate_many(pairs))
