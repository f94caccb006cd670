"""Evaluation over several turns: which samples get another turn, their prompts, and the metrics."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from kernel_coder.evaluate.__main__ import main
from kernel_coder.evaluate.answers import Request
from kernel_coder.evaluate.config import EvaluateConfig, load_config
from kernel_coder.evaluate.errors import UsageError
from kernel_coder.evaluate.report import Results
from kernel_coder.evaluate.run import evaluate
from pretend import PretendJudge, PretendModel, said, write_tasks

# Answers of turns one to three, by task and sample.
SCRIPT: dict[tuple[str, int], list[tuple[str, float | None]]] = {
    ("1", 0): [("wrong_output", None), ("correct", 1.5), ("correct", 1.2)],
    ("1", 1): [("compile_error", None), ("compile_error", None), ("compile_error", None)],
    ("2", 0): [("correct", 0.5), ("correct", 2.5), ("timeout", None)],
    ("2", 1): [("harness_failed", None), ("timeout", None), ("correct", 3.0)],
}


def text_of(request: Request) -> str:
    """The number of answers in the prompt selects the answer. A repeated turn skips the scripted harness_failed."""
    turn = sum(message["role"] == "assistant" for message in request.messages)
    name = request.task.id.rpartition("/")[2][0]
    script = [one for one in SCRIPT[name, request.sample] if one[0] != "harness_failed" or request.seed in FIRST]
    return f"<think>Hm.</think>{said(*script[min(turn, 2)])}"


FIRST: set[int] = set()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("fixed") / "scales", 2)


def config(tasks: Path, output: Path, **changes: Any) -> EvaluateConfig:
    values: dict[str, Any] = {"model": "m", "tasks": str(tasks), "output": str(output), "samples": 2, "turns": 3}
    return EvaluateConfig.model_validate({**values, "device": "cpu", "backend": "torch", **changes})


class Model(PretendModel):
    """Records its requests, and the seeds of first turns in `FIRST`."""

    def __init__(self, die_after: int | None = None) -> None:
        super().__init__(self.say, die_after)
        self.requests: list[Request] = []

    def say(self, request: Request) -> str:
        if not any(one.task.id == request.task.id and one.sample == request.sample for one in self.requests):
            FIRST.add(request.seed)
        self.requests.append(request)
        return text_of(request)


def run(chosen: EvaluateConfig, model: Any = None, *, resume: bool = False) -> Results:
    FIRST.clear()
    return evaluate(chosen, resume=resume, make_judge=PretendJudge(), make_model=model or Model(), log=io.StringIO())


def by_turn(output: Path) -> list[dict[str, Any]]:
    return json.loads((output / "turns.json").read_text())


def test_metrics_of_every_turn_count_the_best_answer_so_far(tasks: Path, tmp_path: Path) -> None:
    results = run(config(tasks, tmp_path))
    record = by_turn(tmp_path)
    assert [one["turns"] for one in record] == [1, 2, 3]
    assert [one["correct"]["value"] for one in record] == pytest.approx([1 / 3, 2 / 4, 3 / 4])
    assert [one["harness_failed"] for one in record] == [1, 0, 0]
    assert [one["fast_p"]["eager"]["1"]["value"] for one in record] == pytest.approx([0, 2 / 4, 3 / 4])
    assert [one["pass_at_k"]["correct"]["2"]["value"] for one in record][1:] == [1.0, 1.0]
    best = {key[0].rpartition("/")[2][0] + str(key[1]): verdict for key, verdict in results.verdicts.items()}
    assert best["10"].speedup == 1.5  # not the later, slower answer
    assert best["20"].speedup == 2.5
    table = (tmp_path / "turns.md").read_text()
    assert table.count("\n") == 5
    assert "best of 2 samples" in table
    assert "The best of 3 turns counts" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"]["correct"]["value"] == 0.75


def test_later_turns_show_answers_without_reasoning_and_the_feedback(tasks: Path, tmp_path: Path) -> None:
    model = Model()
    run(config(tasks, tmp_path, context_turns=1, feedback_template="nano"), model)
    mine = [one for one in model.requests if one.task.id.rpartition("/")[2].startswith("1") and one.sample == 0]
    opening = list(mine[0].messages)
    for turn, request in enumerate(mine[1:], start=1):
        messages = list(request.messages)
        assert messages[: len(opening)] == opening
        assert [message["role"] for message in messages[len(opening) :]] == ["assistant", "user"]
        answer, told = messages[-2:]
        assert "think" not in answer["content"]
        assert told["content"].startswith(SCRIPT["1", 0][turn - 1][0])
    assert len({one.seed for one in mine}) == 3


def test_stop_when_correct_ends_a_conversation_at_a_correct_answer(tasks: Path, tmp_path: Path) -> None:
    model = Model()
    run(config(tasks, tmp_path, stop_when_correct=True), model)
    asked = [(one.task.id.rpartition("/")[2][0], one.sample) for one in model.requests]
    assert [asked.count(key) for key in (("1", 0), ("1", 1), ("2", 0), ("2", 1))] == [2, 3, 1, 3]
    assert [one["correct"]["value"] for one in by_turn(tmp_path)][-1] == 0.75


@pytest.mark.parametrize("die_after", [2, 5, 9])
def test_interrupted_run_resumes_without_repeating_answers(tasks: Path, tmp_path: Path, die_after: int) -> None:
    wanted = run(config(tasks, tmp_path / "a")).verdicts
    chosen = config(tasks, tmp_path / "b")
    first = Model(die_after)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, first)

    class Rest(Model):
        def say(self, request: Request) -> str:
            self.requests.append(request)
            return text_of(request)

    rest = Rest()
    FIRST.update(one.seed for one in first.requests[:4])
    kept = set(FIRST)
    results = evaluate(chosen, resume=True, make_judge=PretendJudge(), make_model=rest, log=io.StringIO())
    assert kept <= FIRST
    if die_after > 4:  # the first turn was complete, so all seeds of first turns are known
        assert results.verdicts == wanted
    assert len(first.requests) + len(rest.requests) == 12


def test_run_with_one_turn_writes_no_files_for_turns(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path, turns=1))
    assert not (tmp_path / "turns.json").exists()
    assert not (tmp_path / "turn_2").exists()


def test_command_accepts_turns_and_parallel_samples(tasks: Path, tmp_path: Path) -> None:
    found = load_config(None, ["--model", "m", "--turns", "3", "--parallel", "4"])
    assert (found.turns, found.samples) == (3, 4)
    with pytest.raises(UsageError, match="feedback template none"):
        run(config(tasks, tmp_path / "x", feedback_template="none"))
    flags = ["--model", "m", "--tasks", str(tasks), "--output", str(tmp_path / "y"), "--device", "cpu", "--turns", "2"]
    assert main(flags, make_judge=PretendJudge(), make_model=Model()) == 0
    assert len(by_turn(tmp_path / "y")) == 2
