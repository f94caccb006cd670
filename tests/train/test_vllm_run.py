"""Training runs that sample from a server with vLLM's routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm, fake_vllm
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.run.errors import EXIT_ENGINE
from kernel_coder.train.__main__ import main
from tiny_run import flags, records


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    tokenizer = tiny_tokenizer()
    with fake_vllm(tiny_model(len(tokenizer)).eval(), tokenizer) as server:
        yield server


def sampling_from(fake: FakeVllm, tasks: Path, run_dir: Path, **changes: Any) -> list[str]:
    given = {"rollout__engine": "vllm", "vllm__url": fake.url, "vllm__update_timeout_s": 20.0, "model__device": "cpu"}
    return flags(tasks, run_dir, **given, optim__lr_scheduler_type="constant", **changes)


def test_each_step_samples_from_the_weights_of_the_step_before(fake: FakeVllm, tasks: Path, tmp_path: Path) -> None:
    changes = {"run__eval_steps": 2, "eval__num_tasks": 2, "run__eval_on_start": "true"}
    assert main(sampling_from(fake, tasks, tmp_path / "run", **changes)) == 0
    steps = [step for step in records(tmp_path / "run" / "metrics.jsonl") if "loss" in step]
    assert len(steps) == 4
    assert all(abs(step["sampling/logratio_mean"]) < 1e-5 and step["time/load_s"] > 0 for step in steps)
    assert fake.calls.count("/update_weights") == 5  # before the first step and after each of four
    assert fake.version == "4"


def test_answers_sampled_ahead_come_from_older_weights(fake: FakeVllm, tasks: Path, tmp_path: Path) -> None:
    assert main(sampling_from(fake, tasks, tmp_path / "run", rollout__lag=1)) == 0
    samples = records(tmp_path / "run" / "samples.jsonl")
    assert {(line["step"], line["version"]) for line in samples} == {(1, 0), (2, 0), (3, 1), (4, 2)}
    steps = records(tmp_path / "run" / "metrics.jsonl")
    assert abs(steps[0]["sampling/logratio_mean"]) < 1e-5 < abs(steps[-1]["sampling/logratio_mean"])


@pytest.mark.parametrize("lag", [0, 1])
def test_server_with_wrong_weights_ends_the_run_before_it_learns(
    fake: FakeVllm, tasks: Path, tmp_path: Path, lag: int, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"rollout__lag": lag, "optim__learning_rate": 0.05}
    fake.stale_from = 2
    assert main(sampling_from(fake, tasks, tmp_path / "run", **changes)) == EXIT_ENGINE
    error = capsys.readouterr().err
    assert "its weights are not the model's" in error
    assert "--resume" in error
    assert len(records(tmp_path / "run" / "metrics.jsonl")) == 2 - 1 + lag  # no step learns from stale answers
