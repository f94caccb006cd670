"""Common mistakes: each gives one clear sentence on stderr, exit code 2, and no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_coder import _core
from kernel_coder.models.tiny import tiny_model, tiny_tokenizer
from kernel_coder.policy.model import resolve_device
from kernel_coder.run.errors import EXIT_DIVERGED, UsageError
from kernel_coder.train.__main__ import main
from tiny_run import flags, records, summary, write_tasks

NAMED = json.dumps([{"name": "no_such_reward"}])


def mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error sentence that this command line prints."""
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "Traceback" not in said
    return said.strip()


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    (
        "wrong dtype name",
        {"model__dtype": "fp32"},
        "model.dtype: input should be 'float32', 'bfloat16' or 'float16'; got 'fp32'",
    ),
    (
        "unknown flag",
        {"optim__lerning_rate": 1},
        "unknown flag --optim.lerning_rate; did you mean optim.learning_rate?",
    ),
    (
        "flag without its section",
        {"learning_rate": 1},
        "unknown flag --learning_rate; did you mean optim.learning_rate?",
    ),
    ("not a number", {"run__max_steps": "many"}, "run.max_steps: input should be a valid integer"),
    (
        "model folder missing",
        {"model__name_or_path": "./no/model"},
        "model.name_or_path ./no/model is neither a folder nor a hub id",
    ),
    (
        "group that does not divide",
        {"rollout__num_generations": 3},
        "does not divide into groups of rollout.num_generations = 3",
    ),
    ("group of one", {"rollout__num_generations": 1}, "every answer is its own baseline and every advantage is 0"),
    (
        "prompt longer than the context",
        {"rollout__max_completion_length": 4090},
        "for the answer is more than the context of 4096",
    ),
    (
        "every prompt too long",
        {"data__max_prompt_length": 2},
        "6 tasks were dropped: their prompts exceed data.max_prompt_length = 2",
    ),
    ("unknown reward", {"rewards": NAMED}, "no_such_reward"),
    ("unknown loss", {"loss__loss_type": "gpro"}, "the loss section is not a loss: preset must be one of"),
    ("unknown schedule", {"optim__lr_scheduler_type": "lineer"}, "optim.lr_scheduler_type lineer cannot be used"),
    ("unknown tracker", {"run__report_to": "wandbb"}, "run.report_to names an unknown tracker wandbb"),
    ("no such device", {"model__device": "gpu"}, "model.device must be auto, cpu, cuda or cuda:N; got gpu"),
    ("data missing", {"data__path": "/no/data.jsonl"}, "/no/data.jsonl"),
]


@pytest.mark.parametrize(("changes", "sentence"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistake_in_a_flag(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], sentence: str
) -> None:
    assert sentence in mistake(flags(tasks, tmp_path / "run", **changes), capsys)


def test_missing_config_file(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = mistake(["--config", "no.yaml"], capsys)
    assert sentence.startswith("error: config file no.yaml does not exist; ")


def test_unknown_key_in_the_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("rollout:\n  num_generation: 4\n")
    sentence = mistake(["--config", str(tmp_path / "c.yaml")], capsys)
    assert sentence == "error: unknown key rollout.num_generation in the config; did you mean rollout.num_generations?"


def test_unknown_key_of_a_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("rewards:\n- name: format\n  wieght: 2\n")
    sentence = mistake(["--config", str(tmp_path / "c.yaml")], capsys)
    assert sentence == "error: unknown key rewards.0.wieght in the config; did you mean rewards.0.weight?"


def test_config_that_is_not_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("model: [\n")
    assert "is not YAML" in mistake(["--config", str(tmp_path / "c.yaml")], capsys)


def test_empty_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    sentence = mistake(flags(tmp_path / "empty.jsonl", tmp_path / "run"), capsys)
    assert "empty.jsonl holds no usable task: it is empty" in sentence


def test_more_tasks_held_out_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write_tasks(tmp_path / "tasks", 2)
    assert "= 2 holds them all out" in mistake(flags(tasks, tmp_path / "run", eval__num_tasks=2), capsys)
    assert "eval.num_tasks: cannot hold out 3 of 2" in mistake(
        flags(tasks, tmp_path / "run", eval__num_tasks=3), capsys
    )


def test_model_without_chat_template(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tiny_tokenizer(chat_template=None)
    tokenizer.save_pretrained(tmp_path / "model")
    tiny_model(len(tokenizer)).save_pretrained(tmp_path / "model")
    run = flags(tasks, tmp_path / "run", model__name_or_path=tmp_path / "model", run__max_steps=1)
    assert "has no chat template, so it cannot be asked anything" in mistake(run, capsys)
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    assert main([*run, "--model.chat_template", str(tmp_path / "chat.jinja")]) == 0


def test_folder_without_a_model(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    sentence = mistake(flags(tasks, tmp_path / "run", model__name_or_path=tmp_path / "empty"), capsys)
    assert "no tokenizer can be loaded from" in sentence


def test_gguf_file_missing(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"model__name_or_path": tmp_path, "model__gguf_file": "no.gguf"}
    assert "model.gguf_file no.gguf does not exist in" in mistake(flags(tasks, tmp_path / "run", **changes), capsys)


def test_folder_that_holds_a_run_is_not_overwritten(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = flags(tasks, tmp_path / "run", run__max_steps=1)
    assert main(run) == 0
    assert "already holds a run: pass --resume" in mistake(run, capsys)
    (tmp_path / "run" / "mine.txt").write_text("kept")
    assert main([*run, "--run.overwrite_output_dir", "true"]) == 0
    assert (tmp_path / "run" / "mine.txt").exists()


@pytest.mark.parametrize("name", ["infinite", "unscored"])
def test_rewards_that_are_never_finite_do_not_change_the_weights(tasks: Path, tmp_path: Path, name: str) -> None:
    rewards = json.dumps([{"name": f"tiny_run:{name}"}])
    changes = {"optim__weight_decay": 0.1, "run__max_steps": 2}
    assert main(flags(tasks, tmp_path / "run", rewards=rewards, **changes)) == 0
    last = records(tmp_path / "run" / "metrics.jsonl")[-1]
    assert (last["unscored"], last["skipped_updates"], last["reward"]) == (8, 1, None)
    assert main(flags(tasks, tmp_path / "still", optim__learning_rate=0, **changes)) == 0
    assert summary(tmp_path / "run")["weights_sha256"] == summary(tmp_path / "still")["weights_sha256"]


def test_run_with_only_skipped_updates_ends_with_its_own_exit_code(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = json.dumps([{"name": "tiny_run:unscored"}])
    assert main(flags(tasks, tmp_path / "run", rewards=rewards, run__max_skipped_updates=2)) == EXIT_DIVERGED
    assert "error: 2 updates in a row were refused (run.max_skipped_updates)" in capsys.readouterr().err


def test_mistake_in_a_separate_process_prints_one_sentence(tmp_path: Path) -> None:
    """The command in a process of its own prints one sentence on stderr and nothing on stdout."""
    for command in (["-m", "kernel_coder.train"], ["-m", "kernel_coder.cli", "train"]):
        done = subprocess.run(
            [sys.executable, *command, "--rollout.num_generations", "1"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("error: rollout.num_generations is 1")
        assert done.stderr.count("\n") == 1


def test_gpu_without_cuda_kernels_in_this_build_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(_core, "has_cuda_kernel", lambda op: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(
        UsageError, match=r"^model.device is cuda, but linear_grpo_loss has no CUDA kernel in this build"
    ):
        resolve_device("cuda")
