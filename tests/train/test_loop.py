"""The loop on a two-layer model: a golden curve, the files of a run, and the printed output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from golden import CURVE, GOLDEN, curve
from kernel_coder.train import loop
from kernel_coder.train.__main__ import main
from kernel_coder.train.config import load_config
from kernel_coder.train.curriculum import draw_epochs
from kernel_coder.train.metrics import reward_metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_run import flags, records, summary, timeless, write_tasks

SUMMARY_KEYS = [
    "status",
    "steps",
    "updates",
    "skipped_updates",
    "trained_tokens",
    "tasks",
    "held_out_tasks",
    "reward_first",
    "eval_reward_first",
    "judge_correct_first",
    "eval_judge_correct_first",
    "reward_last",
    "eval_reward_last",
    "judge_correct_last",
    "eval_judge_correct_last",
    "weights_sha256",
    "checkpoint",
    "model",
    "data",
    "data_fingerprint",
    "seed",
    "processes",
    "threads",
    "device",
    "kernel_coder",
    "torch",
    "python",
    "finished_at",
    "seconds_train",
    *(f"heldout_correct_{name}{end}" for name in ("before", "after", "gain") for end in ("", "_low", "_high")),
]


def test_ten_steps_follow_the_golden_curve(tmp_path: Path) -> None:
    """Equal on one machine; another processor may round differently, and 1e-3 still catches any change of the loss."""
    golden = json.loads(GOLDEN.read_text())
    found = curve(tmp_path)
    assert len(found) == len(golden) == 10
    for step, (now, then) in enumerate(zip(found, golden, strict=True), start=1):
        for name in CURVE:
            assert now[name] == pytest.approx(then[name], rel=1e-3, abs=1e-5), f"{name} at step {step}"


def test_two_runs_are_equal_bit_for_bit(tasks: Path, tmp_path: Path) -> None:
    for name in "ab":
        assert main(flags(tasks, tmp_path / name)) == 0
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    assert summary(tmp_path / "a")["weights_sha256"] == summary(tmp_path / "b")["weights_sha256"]
    assert main(flags(tasks, tmp_path / "c", run__seed=1)) == 0
    assert summary(tmp_path / "a")["weights_sha256"] != summary(tmp_path / "c")["weights_sha256"]


@pytest.fixture(scope="module")
def run_dir(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    changes = {"run__eval_steps": 2, "eval__num_tasks": 2, "run__eval_on_start": "true"}
    assert main(flags(tasks, run_dir, **changes)) == 0
    return run_dir


def test_last_printed_line_names_the_next_command(
    tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(tasks, tmp_path / "run", run__max_steps=1)) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[-2:] == [
        f"all numbers: {tmp_path / 'run' / 'summary.json'}",
        f"next: kernel-coder report {tmp_path / 'run'}",
    ]
    assert "step 1/1  reward" in out
    assert "\x1b" not in out
    assert err == ""


def test_summary_has_the_same_flat_keys_in_every_run(run_dir: Path, tasks: Path, tmp_path: Path) -> None:
    assert main(flags(tasks, tmp_path / "run", run__max_steps=1)) == 0
    for one in (run_dir, tmp_path / "run"):
        assert list(summary(one)) == SUMMARY_KEYS
        assert not any(isinstance(value, (dict, list)) for value in summary(one).values())
    assert summary(run_dir)["eval_reward_last"] is not None
    assert summary(tmp_path / "run")["eval_reward_last"] is None


def test_metrics_contain_the_expected_names(run_dir: Path) -> None:
    lines = records(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    names = set(
        [
            "reward",
            "reward_std",
            "frac_reward_zero_std",
            "rewards/letters/mean",
            "rewards/letters/std",
            "loss",
            "grad_norm",
            "learning_rate",
            "entropy",
            "kl",
            "clip_ratio/low_mean",
            "clip_ratio/high_mean",
            "completions/mean_length",
            "completions/clipped_ratio",
            "skipped_updates",
            "num_tokens",
            "time/rollout_s",
            "time/reward_s",
            "time/update_s",
            "time/step_s",
            "time/tokens_per_second",
        ]
    )
    assert {name.replace("tiny_run:", "") for name in lines[1]} >= names
    assert "eval/reward" in lines[0]
    assert "eval/reward" in lines[2]
    assert "time/eval_s" in lines[2]
    assert "eval/reward" not in lines[1]


def test_samples_file_has_prompts_rewards_and_unique_ids_in_task_groups(run_dir: Path) -> None:
    every = records(run_dir / "samples.jsonl")
    samples = [sample for sample in every if not sample["id"].startswith("eval/")]
    assert len(samples) == 4 * 8
    assert {sample["step"] for sample in every if sample not in samples} == {0, 2, 4}
    assert "advantage" not in next(sample for sample in every if sample not in samples)
    assert len({sample["id"] for sample in samples}) == len(samples)
    assert "get_init_inputs" in json.dumps(samples[0]["prompt"])
    assert set(samples[0]) >= {"step", "task", "completion", "finish_reason", "reward", "rewards", "advantage"}
    for start in range(0, len(samples), 4):
        assert len({sample["task"] for sample in samples[start : start + 4]}) == 1


def test_held_out_tasks_are_never_trained_on(run_dir: Path) -> None:
    assert summary(run_dir)["held_out_tasks"] == 2
    samples = records(run_dir / "samples.jsonl")
    asked = {sample["task"] for sample in samples if sample["id"].startswith("eval/")}
    assert asked
    assert not asked & {sample["task"] for sample in samples if not sample["id"].startswith("eval/")}


def test_tensorboard_holds_the_same_numbers(run_dir: Path) -> None:
    board = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("reward")] == [1, 2, 3, 4]
    assert board.Scalars("loss")[0].value == pytest.approx(records(run_dir / "metrics.jsonl")[1]["loss"])


def test_resolved_config_is_in_the_run_folder(run_dir: Path) -> None:
    assert load_config(run_dir / "config.yaml", []).run.output_dir == str(run_dir)
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["optim"]["adam_beta1"] == 0.9


def test_every_epoch_has_every_task_once() -> None:
    drawn = [place for step in range(10) for place in draw_epochs(5, 3 * step, 3, 0, True)]
    for epoch in range(6):
        assert sorted(drawn[5 * epoch : 5 * epoch + 5]) == list(range(5))
    assert drawn[:5] != drawn[5:10]
    assert draw_epochs(5, 3, 3, 0, False) == [3, 4, 0]


def test_reward_metrics_ignore_unscored_answers() -> None:
    found = reward_metrics([1.0, 3.0, None, 5.0, 2.0, 2.0], {"a": [1.0, None, None, 3.0, 2.0, 2.0]}, 2, torch.zeros(6))
    assert found["reward"] == pytest.approx(13 / 5)
    assert found["unscored"] == 1
    assert found["frac_reward_zero_std"] == pytest.approx(2 / 3)
    assert found["rewards/a/mean"] == 2


def test_loop_module_has_fewer_than_300_lines() -> None:
    assert len(Path(loop.__file__).read_text().splitlines()) < 300


def test_learning_raises_the_reward(tasks: Path, tmp_path: Path) -> None:
    """A wrong sign anywhere between the advantages and the step would make this dense reward fall."""
    rewards = json.dumps([{"name": "tiny_run:letters"}])
    changes = {"run__max_steps": 25, "optim__learning_rate": 1e-2, "optim__per_device_train_batch_size": 16}
    assert main(flags(tasks, tmp_path / "run", rewards=rewards, optim__lr_scheduler_type="constant", **changes)) == 0
    found = [record["reward"] for record in records(tmp_path / "run" / "metrics.jsonl")]
    assert sum(found[-5:]) / 5 > sum(found[:5]) / 5 + 0.1


def test_held_out_tasks_may_come_from_another_folder(tasks: Path, tmp_path: Path) -> None:
    other = write_tasks(tmp_path / "other", 3)
    changes = {"eval__path": other, "eval__num_tasks": 2, "run__eval_steps": 1, "run__max_steps": 1}
    assert main(flags(tasks, tmp_path / "run", **changes)) == 0
    found = summary(tmp_path / "run")
    assert (found["tasks"], found["held_out_tasks"]) == (6, 2)
    assert found["eval_reward_last"] is not None
