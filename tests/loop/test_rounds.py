"""Rounds of reinforcement learning, filter and supervised training: inputs of each stage, and resume after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_coder.judge import example_verdict
from kernel_coder.loop import rounds
from kernel_coder.loop.__main__ import main
from kernel_coder.loop.config import KeepConfig, load_config
from kernel_coder.loop.keep import Solved, keep, solved_answers
from kernel_coder.loop.report import Round, rows
from kernel_coder.loop.rounds import Loop
from kernel_coder.run.errors import UsageError
from kernel_coder.run.steps import RunResult

ROOT = Path(__file__).parents[2]


def said(thinking: str, number: int) -> str:
    return f"<thinking>\n{thinking}\n</thinking>\n<answer>\n```python\nx = {number}\n```\n</answer>"


def sample(
    task: str, thinking: str, number: int, speedup: float | None = None, outcome: str = "correct", where: str = ""
) -> dict[str, Any]:
    return {
        "id": f"{where}1/0/{task}/{number}",
        "task": task,
        "prompt": [{"role": "user", "content": f"Rewrite {task}."}],
        "completion": said(thinking, number),
        "verdict": json.loads(example_verdict(outcome, speedup=speedup).to_json()),
    }


SAMPLES = [
    sample("relu", "a long thought", 1, 3.0),
    sample("relu", "short", 2, 1.0),
    sample("relu", "short", 2, 1.0),  # the same text again
    sample("relu", "", 3, outcome="timeout"),
    sample("relu", "a thought", 4, 2.0),
    sample("gelu", "thought", 5, 0.5),
    sample("gelu", "held out", 6, 9.0, where="eval/"),
    {**sample("gelu", "unclosed", 7), "completion": "<thinking>"},
]


def write_samples(folder: Path, samples: list[dict[str, Any]] = SAMPLES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in samples))
    return path


def test_only_correct_answers_in_the_right_form_to_training_tasks_are_learnt(tmp_path: Path) -> None:
    found = list(solved_answers(write_samples(tmp_path)))
    assert [(one.task, one.thinking, one.speedup) for one in found] == [
        ("relu", 14, 3.0),
        ("relu", 5, 1.0),
        ("relu", 5, 1.0),
        ("relu", 9, 2.0),
        ("gelu", 7, 0.5),
    ]
    assert found[0].row()["prompt"] == [{"role": "user", "content": "Rewrite relu."}]


def test_the_first_turn_of_a_conversation_is_learnt_and_later_ones_are_not(tmp_path: Path) -> None:
    first, second = sample("relu", "first", 1), sample("relu", "second", 2)
    begun = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<thinking>"}]
    talk = {**second, "prompt": begun, "turns": [first, second]}
    (found,) = solved_answers(write_samples(tmp_path, [talk]))
    assert (found.completion, found.prompt) == (said("first", 1), begun[:1])


@pytest.mark.parametrize(
    ("changes", "thinking"),
    [
        ({"by": "concise", "per_task": 2}, [7, 5, 9]),
        ({"by": "fast", "per_task": 2}, [7, 14, 9]),
        ({"by": "longest", "per_task": 1}, [7, 14]),
        ({"by": "all", "per_task": 1}, [7, 14, 5, 9]),
        ({"by": "all", "min_speedup": 1.5}, [14, 9]),
        ({"by": "all", "max_thinking": 7}, [7, 5]),
    ],
)
def test_filter_keeps_the_chosen_answers_of_each_task(
    changes: dict[str, Any], thinking: list[int], tmp_path: Path
) -> None:
    answers = list(solved_answers(write_samples(tmp_path)))
    assert [one.thinking for one in keep(answers, KeepConfig(**changes), seed=0)] == thinking


def test_random_choice_of_answers_depends_on_the_seed() -> None:
    answers = [Solved("relu", [], f"{n}", n, None) for n in range(20)]
    draws = [keep(order, KeepConfig(by="random", per_task=5), seed) for order in (answers, answers) for seed in (0, 1)]
    assert draws[0] == draws[2] != draws[1] == draws[3]
    assert len({one.completion for one in draws[0]}) == 5


# ---- the rounds, with stages that only record their configs ----------------------------------------------------------


class Stages:
    """Stands in for training, supervised training and evaluation; ``fail`` names a call that is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fail = fail
        for name in ("train", "sft", "evaluate"):
            monkeypatch.setattr(rounds, name, getattr(self, name))
        monkeypatch.setattr(rounds, "evaluation_facts", lambda facts: facts)

    def _called(self, name: str, config: Any) -> None:
        self.calls.append((name, config))
        if f"{name} {sum(one == name for one, _ in self.calls)}" == self.fail:
            raise KeyboardInterrupt

    def train(self, config: Any, *, resume: str) -> RunResult:
        assert resume == "auto"
        self._called("train", config)
        folder = Path(config.run.output_dir)
        number = int(folder.parent.name.removeprefix("round-"))
        more = [sample(f"task {number}", "thought", number)]
        return RunResult("finished", write_samples(folder, SAMPLES[:1] + more))

    def sft(self, config: Any, *, resume: str) -> RunResult:
        self._called("sft", config)
        folder = Path(config.run.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "summary.json"
        path.write_text(json.dumps({"checkpoint": str(folder / "checkpoint"), "steps": 3}))
        return RunResult("finished", path)

    def evaluate(self, config: Any, **_: Any) -> dict[str, Any]:
        self._called("evaluate", config)
        shares = {"pass": {"1": [0.5, 0.4, 0.6], "8": [0.75, None, None]}, "speedup": [None, None, None]}
        return {"tasks": 2, "samples": 8, "different": 0.5, "different_correct": 2.0, **shares}


def recipe(folder: Path, *more: str) -> list[str]:
    return ["--config", str(ROOT / "configs/nano-loop.yaml"), "--run.output_dir", str(folder / "loop"), *more]


def test_each_round_trains_the_first_model_on_the_answers_of_all_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages(monkeypatch)
    assert main(recipe(tmp_path, "--run.rounds", "2")) == 0
    folder = tmp_path / "loop"
    assert [name for name, _ in stages.calls] == ["evaluate", *["train", "sft", "evaluate"] * 2]
    first, second = (config for name, config in stages.calls if name == "train")
    assert first.model.name_or_path == "nano"
    assert second.model.name_or_path == str(folder / "round-1/sft/checkpoint")
    assert (first.run.seed, second.run.seed) == (1, 2)
    assert [config.model.name_or_path for name, config in stages.calls if name == "sft"] == ["nano"] * 2
    kept = [(folder / f"round-{number}/kept.jsonl").read_text().splitlines() for number in (1, 2)]
    assert [{json.loads(line)["task"] for line in lines} for lines in kept] == [
        {"relu", "task 1"},
        {"relu", "task 1", "task 2"},
    ]
    evaluated = [config.model for name, config in stages.calls if name == "evaluate"]
    assert evaluated == ["nano", *(str(folder / f"round-{number}/sft/checkpoint") for number in (1, 2))]
    table = (folder / "rounds.md").read_text()
    assert "| 2 | 2 | 100.0% | 100.0% | 3 of 4 |" in table
    assert "50.0% (40.0% to 60.0%) | 75.0%" in table
    assert "<th>2</th>" in (folder / "report.html").read_text()


@pytest.mark.parametrize("fail", ["evaluate 1", "train 2", "sft 1", "evaluate 3"])
def test_resume_repeats_only_the_stage_that_was_killed(
    fail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = recipe(tmp_path, "--run.rounds", "2")
    killed = Stages(monkeypatch, fail)
    with pytest.raises(KeyboardInterrupt):
        main(every)
    resumed = Stages(monkeypatch)
    assert main([*every, "--resume"]) == 0
    names = [name for name, _ in (*killed.calls[:-1], *resumed.calls)]
    assert names == ["evaluate", *["train", "sft", "evaluate"] * 2]
    more = Stages(monkeypatch)
    assert main([*recipe(tmp_path, "--run.rounds", "3"), "--resume"]) == 0  # one more round of the same loop
    assert [name for name, _ in more.calls] == ["train", "sft", "evaluate"]


def test_mistakes_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mistake(*flags: str) -> str:
        capsys.readouterr()
        assert main(recipe(tmp_path, *flags)) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "unknown flag --run.round; did you mean run.rounds?" in mistake("--run.round", "2")
    assert "train.rollout.num_generation" in mistake("--train", '{"rollout": {"num_generation": 2}}')
    assert "train.run.output_dir is set by the loop itself" in mistake("--train", '{"run": {"output_dir": "x"}}')
    assert "evaluate.samples: input should be greater than or equal to 1" in mistake("--evaluate", '{"samples": 0}')
    Stages(monkeypatch)
    assert main(recipe(tmp_path)) == 0
    assert "already holds a loop: pass --resume" in mistake()
    assert "holds a loop with another config" in mistake("--resume", "--keep.per_task", "9")


def test_round_without_an_answer_to_learn_from_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Stages(monkeypatch)
    loop = Loop(load_config(*[None], ["--run.output_dir", str(tmp_path), "--keep.min_speedup", "9"]), lambda line: None)
    loop.open(resume=False)
    with pytest.raises(UsageError, match="no answer of 1 rounds is correct and passes the filter"):
        loop.run()


def test_row_of_an_unfinished_round_has_empty_columns() -> None:
    header, row = rows([Round(1, rl={"answers": 8, "correct": 2, "different": 4, "seconds": 3.0})])
    assert len(header) == len(row)
    assert row == ["1", "8", "25.0%", "50.0%", *["–"] * 5, "3"]


# ---- a real round ----------------------------------------------------------------------------------------------------

SMALL = {
    "train": {
        "model": {"device": "cpu"},
        "data": {"path": "packaged:pointwise", "prompt_template": "nano", "limit": 4},
        "rollout": {"num_generations": 4, "max_completion_length": 256},
        "rewards": ["format", "correct"],
        "judge": {"device": "cpu", "timing": False, "checks": 1, "null_candidates": False, "seed": 0},
        "optim": {"per_device_train_batch_size": 8, "learning_rate": 1e-4},
        "run": {"max_steps": 2, "num_threads": 1, "save_steps": 1},
    },
    "sft": {
        "model": {"device": "cpu"},
        "data": {"prompt_template": "nano", "max_length": 1024},
        "run": {"max_steps": 2, "num_threads": 1, "save_steps": 1},
    },
    "evaluate": {
        "tasks": "packaged:pointwise_heldout",
        "limit": 2,
        "samples": 2,
        "prompt_template": "nano",
        "max_new_tokens": 256,
        "device": "cpu",
        "num_threads": 1,
        "judge": {"timing": False, "checks": 1, "null_candidates": False, "seed": 0},
    },
}


@pytest.mark.long
@pytest.mark.timeout(900)  # four processes, each of which loads torch and starts a judge
def test_round_with_nano_that_is_killed_twice_ends_like_an_uninterrupted_round(tmp_path: Path) -> None:
    config = tmp_path / "loop.yaml"
    config.write_text(json.dumps(SMALL))
    command = [sys.executable, "-m", "kernel_coder.loop", "--config", str(config), "--run.rounds", "1"]

    def stages(folder: Path) -> dict[str, dict[str, Any]]:
        found = json.loads((folder / "state.json").read_text())["stages"]
        return {key: {name: one for name, one in facts.items() if name != "seconds"} for key, facts in found.items()}

    def weights(folder: Path) -> SimpleNamespace:
        runs = {name: json.loads((folder / "round-1" / name / "summary.json").read_text()) for name in ("rl", "sft")}
        return SimpleNamespace(**{name: one["weights_sha256"] for name, one in runs.items()})

    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert subprocess.run([*command, "--run.output_dir", str(straight)], capture_output=True).returncode == 0
    for until in ("round-1/rl/checkpoint-00000001", "round-1/sft/checkpoint-00000001"):
        begun = subprocess.Popen(
            [*command, "--run.output_dir", str(killed), "--resume"], stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + 200
        while not (killed / until).exists() and begun.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
    last = subprocess.run([*command, "--run.output_dir", str(killed), "--resume"], capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert weights(killed) == weights(straight)
    before, after = stages(straight), stages(killed)
    assert before.pop("1/sft")["steps"] == after.pop("1/sft")["steps"] == 2
    assert before == after
