"""Whole runs on several ranks: the metrics of one process, and checkpoints that any number of ranks continues."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_coder.run.checkpoint import list_checkpoints, verify
from kernel_coder.run.shards import holds_shards
from ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sft"))
import sft_run
from tiny_run import flags, records, summary, write_tasks

LETTERS = json.dumps([{"name": "tiny_run:letters"}, {"name": "tiny_run:noise", "weight": 0.5}])
RUN: dict[str, Any] = {
    "run__max_steps": 3,
    "run__save_steps": 1,
    "run__save_total_limit": 10,
    "run__eval_steps": 2,
    "eval__num_tasks": 1,
    "optim__steps_per_generation": 2,
    "optim__per_device_train_batch_size": 8,
    "loss__beta": 0.02,
    "optim__adam_epsilon": 1e-3,
    "optim__lr_scheduler_type": "constant",
}

CLOSE = 2e-4
"""Largest relative difference of a metric. Rounding differs, and AdamW's first steps divide gradients by their size;
``adam_epsilon`` is large so that gradients that are only rounding move nothing."""


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Task ids contain the name of their folder, and ids seed the sampling. pytest numbers only the parent folder.
    return write_tasks(tmp_path_factory.mktemp("fixed") / "tasks")


def train(arguments: list[str]) -> int:
    """Runs the whole train command in this rank."""
    from kernel_coder.train.__main__ import main

    with open(os.devnull, "w") as nowhere:
        sys.stdout = nowhere
        return main(arguments)


def train_on(ranks: int, arguments: list[str]) -> None:
    assert on_ranks(ranks, train, arguments) == [0] * ranks


def compare(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """The same metrics, up to rounding; times are left out."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        names = {name for name in other if not name.startswith("time/")}
        assert {name for name in one if not name.startswith("time/")} == names
        for name in names:
            if other[name] is None or isinstance(other[name], str):
                assert one[name] == other[name], name
            else:
                assert math.isclose(one[name], other[name], rel_tol=CLOSE, abs_tol=CLOSE), (
                    other["step"],
                    name,
                    one[name],
                    other[name],
                )


def answers(run_dir: Path) -> list[tuple[str, str]]:
    return [(line["id"], line["completion"]) for line in records(run_dir / "samples.jsonl")]


@pytest.fixture(scope="session")
def alone(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    train_on(1, flags(tasks, run_dir, **RUN))
    return run_dir


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (2, {}),
        (4, {"parallel__replicas": 2}),
        (2, {"parallel__shard": False}),
    ],
    ids=["2 divided", "4 in 2 copies", "2 whole"],
)
def test_three_steps_equal_those_of_one_process(
    tasks: Path, alone: Path, tmp_path: Path, ranks: int, more: dict[str, Any]
) -> None:
    run_dir = tmp_path / "run"
    train_on(ranks, flags(tasks, run_dir, **RUN, **more))
    assert answers(run_dir) == answers(alone)
    compare(records(run_dir / "metrics.jsonl"), records(alone / "metrics.jsonl"))
    assert summary(run_dir)["processes"] == ranks
    assert {"time/rank1/rollout_s", "time/slowest_rank"} <= set(records(run_dir / "metrics.jsonl")[-1])
    for checkpoint in list_checkpoints(run_dir):
        verify(checkpoint)
    last, before = list_checkpoints(run_dir)[:2]
    assert not holds_shards(last)
    assert holds_shards(before) == more.get("parallel__shard", True)


@pytest.mark.long
def test_resume_on_other_numbers_of_ranks(tasks: Path, alone: Path, tmp_path: Path) -> None:
    """Runs on two ranks, then one, then four. The first two runs have only two steps; step 1 is saved in parts."""
    run_dir = tmp_path / "run"
    train_on(2, flags(tasks, run_dir, **RUN | {"run__max_steps": 2}))
    for path in list_checkpoints(run_dir)[:1]:  # step 2 is saved whole
        verify(path)
    first = run_dir / "checkpoint-00000001"
    assert holds_shards(first)
    train_on(1, [*flags(tasks, run_dir, **RUN | {"run__max_steps": 2}), "--resume", str(first)])
    train_on(4, [*flags(tasks, run_dir, **RUN), "--resume"])
    assert answers(run_dir) == answers(alone)
    found = [one["loss"] for one in records(run_dir / "metrics.jsonl") if "loss" in one]
    wanted = [one["loss"] for one in records(alone / "metrics.jsonl") if "loss" in one]
    assert found == pytest.approx(wanted, rel=CLOSE, abs=CLOSE)


def test_resume_on_the_same_number_of_ranks_gives_the_same_bits(tasks: Path, tmp_path: Path) -> None:
    straight, run_dir = tmp_path / "straight", tmp_path / "run"
    lora = {"model__use_peft": True, "model__lora_dropout": 0.1, "loss__beta": 0.02}
    train_on(2, flags(tasks, straight, **RUN | lora))
    train_on(2, flags(tasks, run_dir, **RUN | lora))
    assert summary(run_dir)["weights_sha256"] == summary(straight)["weights_sha256"]
    first = run_dir / "checkpoint-00000001"
    assert holds_shards(first)
    train_on(2, [*flags(tasks, run_dir, **RUN | lora), "--resume", str(first)])
    assert summary(run_dir)["weights_sha256"] == summary(straight)["weights_sha256"]


def sft(arguments: list[str]) -> int:
    """Runs the whole sft command in this rank."""
    from kernel_coder.sft.__main__ import main

    with open(os.devnull, "w") as nowhere:
        sys.stdout = nowhere
        return main(arguments)


@pytest.mark.parametrize("more", [{}, {"parallel__shard": False}], ids=["divided", "whole"])
def test_supervised_steps_are_those_of_one_process(tmp_path: Path, more: dict[str, Any]) -> None:
    """The last step of an epoch has one sequence, so one of the two ranks has none."""
    pairs = sft_run.write_pairs(tmp_path)
    changes = {
        "optim__gradient_accumulation_steps": 3,
        "optim__adam_epsilon": 1e-3,
        "eval__num_tasks": 3,
        "eval__num_answered": 3,
        "run__eval_steps": 2,
        "run__save_steps": 2,
    }
    for ranks in (1, 2):
        arguments = sft_run.flags(pairs, tmp_path / str(ranks), **changes, **(more if ranks > 1 else {}))
        assert on_ranks(ranks, sft, arguments) == [0] * ranks
    compare(records(tmp_path / "2" / "metrics.jsonl"), records(tmp_path / "1" / "metrics.jsonl"))
    assert answers(tmp_path / "2") == answers(tmp_path / "1")
