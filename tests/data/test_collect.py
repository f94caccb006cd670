"""Collected conversations, and which of their answers are learnt."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_coder.judge.supervisor.open
import pytest
from fake_judge import FakeJudge
from kernel_coder.data.__main__ import main
from kernel_coder.data.collect import KEEP, rows_to_learn
from kernel_coder.judge import Verdict, example_verdict
from kernel_coder.models.tiny import tiny_tokenizer
from kernel_coder.prompts import build_answer
from kernel_coder.rollout import Turn
from kernel_coder.rollout.transformers_engine import TransformersEngine
from kernel_coder.sft.config import SftDataConfig
from kernel_coder.sft.examples import Encoder, conversation_rows, encode_rows

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from tiny_run import write_tasks

OUTCOMES = ("correct", "wrong_output", "compile_error", "timeout", "correct")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> list[FakeJudge]:
    monkeypatch.setattr(kernel_coder.judge.supervisor.open, "Judge", FakeJudge)
    monkeypatch.setattr(FakeJudge, "made", [])
    sampled = TransformersEngine.generate

    def generate(self: TransformersEngine, *given: Any, **more: Any) -> list[Turn]:
        return [replace(turn, text=text_of(turn)) for turn in sampled(self, *given, **more)]

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    return FakeJudge.made


def text_of(turn: Turn) -> str:
    number = zlib.crc32(repr(turn.completion_ids).encode())
    thinking = "so" * (number % 7 + 1)
    code = f"# outcome: {OUTCOMES[number % 5]}\nx = {number}"
    return f"<thinking>\n{thinking}\n</thinking>\n<answer>\n```python\n{code}\n```\n</answer>"


def flags(tmp_path: Path, count: int = 12, *more: str) -> list[str]:
    values = {
        "data.path": write_tasks(tmp_path / "tasks", 3),
        "data.prompt_template": "nano",
        "rollout.max_turns": 3,
        "rollout.num_generations": 2,
        "rollout.max_completion_length": 4,
        "optim.per_device_train_batch_size": 4,
        "rewards": "kevin",
        "judge.device": "cpu",
        "run.num_threads": 1,
    }
    given = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    return ["collect", "--out", str(tmp_path / "talks.jsonl"), "--count", str(count), *given, *more]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_conversations_hold_verdicts_rewards_and_log_probs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(tmp_path)) == 0
    talks = read(tmp_path / "talks.jsonl")
    assert [talk["conversation"] for talk in talks] == list(range(12))
    assert len({talk["task"] for talk in talks}) == 3
    for talk in talks:
        assert len(talk["turns"]) == 3
        for turn in talk["turns"]:
            outcome = re.search(r"# outcome: (\w+)", turn["completion"])
            assert outcome is not None
            verdict = Verdict.from_json(json.dumps(turn["verdict"]))
            assert verdict.outcome == outcome[1]
            assert turn["reward"] == pytest.approx(0.3 * verdict.correct)
            assert len(turn["logprobs"]) == len(turn["completion_ids"]) > 0
            assert max(turn["logprobs"]) <= 0
        first, second = talk["turns"][:2]
        said = first["prompt_ids"] + first["completion_ids"]
        assert second["prompt_ids"][: len(said)] == said
        assert [message["role"] for message in second["prompt"]] == ["user", "assistant", "user"]
    assert str(tmp_path / "talks.sft.jsonl") in capsys.readouterr().out


def test_rows_fit_the_keep_flag_and_encode_for_supervised_training(tmp_path: Path) -> None:
    assert main(flags(tmp_path, 12, "--keep", *KEEP)) == 0
    talks = read(tmp_path / "talks.jsonl")
    assert read(tmp_path / "talks.sft.jsonl") == list(rows_to_learn(iter(talks), KEEP))
    for keep in (*[(one,) for one in KEEP if one != "mended"], KEEP):
        check(talks, list(rows_to_learn(iter(talks), keep)), keep, tmp_path / "rows.jsonl")


def check(talks: list[dict[str, Any]], rows: list[dict[str, Any]], keep: tuple[str, ...], file: Path) -> None:
    assert rows
    correct = [[turn["verdict"]["outcome"] == "correct" for turn in talk["turns"]] for talk in talks]
    if keep == ("solved",):
        assert len(rows) == sum(map(any, correct))
        assert {row["outcome"] for row in rows} == {"correct"}
    if keep == ("improved",):
        assert all(row["turn"] > 1 for row in rows)
    if keep == ("concise",):
        assert len(rows) == len({row["task"] for row in rows}) == 3
        solved = [
            (t["task"], t["turns"][c.index(True)]["completion"]) for t, c in zip(talks, correct, strict=True) if any(c)
        ]
        for row in rows:
            lengths = [len(text.split("</thinking>")[0]) for task, text in solved if task == row["task"]]
            assert len(row["completion"].split("</thinking>")[0]) == min(lengths)
    assert len({(row["task"], row["completion"]) for row in rows}) == len(rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = conversation_rows(str(file))
    assert found is not None
    tokenizer = tiny_tokenizer()
    examples, dropped = encode_rows(Encoder(tokenizer, SftDataConfig(max_length=4000)), found)
    assert (len(examples), dropped) == (len(rows), [])
    for example, row in zip(examples, rows, strict=True):  # only the answer is learnt, not the earlier failures
        assert tokenizer.decode(example.ids[example.in_loss].tolist()) == f"{row['completion']}<|im_end|>"


def test_stopped_collection_resumes_to_the_same_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, broken = tmp_path / "a", tmp_path / "b"
    assert main(flags(straight)) == 0
    judged = FakeJudge.evaluate

    def evaluate(self: FakeJudge, *given: Any) -> Verdict:
        if self is FakeJudge.made[1] and next(self.begun) == 16:
            os.kill(os.getpid(), signal.SIGTERM)
        return judged(self, *given)

    monkeypatch.setattr(FakeJudge, "evaluate", evaluate)
    assert main(flags(broken)) == 75
    assert 0 < len(read(broken / "talks.jsonl")) < 12
    assert main(flags(broken)) == 0
    assert (broken / "talks.jsonl").read_bytes() == (straight / "talks.jsonl").read_bytes()


def test_interrupted_file_is_completed_to_the_same_bytes(tmp_path: Path) -> None:
    assert main(flags(tmp_path)) == 0
    whole = (tmp_path / "talks.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "talks.jsonl").write_bytes(b"".join(lines[:6]) + lines[6][:50])
    assert main(flags(tmp_path)) == 0
    assert (tmp_path / "talks.jsonl").read_bytes() == whole


def test_mistakes_give_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def mistake(arguments: list[str]) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        return capsys.readouterr().err.removeprefix("error: ").strip()

    assert mistake(flags(tmp_path, 0)) == "--count must be at least 1; got 0"
    assert mistake(flags(tmp_path, 4, "--rollout.max_turn", "2")) == (
        "unknown flag --rollout.max_turn; did you mean rollout.max_turns?"
    )
    bare = ["collect", "--out", str(tmp_path / "x.jsonl"), "--count", "1"]
    assert mistake(bare).startswith("collect needs a judge")
    assert main(flags(tmp_path, 4)) == 0
    assert "conversations from another recipe" in mistake(flags(tmp_path, 8, "--rollout.temperature", "0.5"))


def test_improved_keeps_only_answers_better_than_all_before() -> None:
    def turn(outcome: str, number: int) -> dict[str, Any]:
        text = f"<thinking>\n</thinking>\n<answer>\n```python\nx = {number}\n```\n</answer>"
        return {
            "prompt": [],
            "completion": text,
            "reward": 0.0,
            "verdict": json.loads(example_verdict(outcome).to_json()),
        }

    outcomes = ["wrong_output", "timeout", "wrong_output", "harness_failed", "correct", "correct"]
    talk = {"task": "t", "turns": [turn(outcome, number) for number, outcome in enumerate(outcomes)]}
    assert [row["turn"] for row in rows_to_learn(iter([talk]), ["improved"])] == [5]
    assert [row["turn"] for row in rows_to_learn(iter([talk]), ["solved", "improved"])] == [5]


def test_mended_answers_the_feedback_on_a_wrong_answer_with_the_known_solution(tmp_path: Path) -> None:
    assert main(flags(tmp_path, 12, "--rollout.max_turns", "2")) == 0
    talks = read(tmp_path / "talks.jsonl")
    tasks = sorted({talk["task"] for talk in talks})
    assert list(rows_to_learn(iter(talks), ["mended"])) == []
    solutions = {task: f"class ModelNew: ...  # {task}" for task in tasks[1:]}
    rows = list(rows_to_learn(iter(talks), ["mended"], solutions))
    wrong = [
        talk
        for talk in talks
        if talk["task"] in solutions and talk["turns"][0]["verdict"]["outcome"] not in ("correct", "harness_failed")
    ]
    assert 0 < len(wrong) < len(talks)
    assert [row["prompt"] for row in rows] == [talk["turns"][1]["prompt"] for talk in wrong]
    for row, talk in zip(rows, wrong, strict=True):
        assert row["prompt"][1] == {"role": "assistant", "content": talk["turns"][0]["completion"]}
        assert row["prompt"][2]["role"] == "user"
        assert row["completion"] == build_answer(solutions[talk["task"]])
    twice = list(rows_to_learn(iter(talks + talks), ["mended"], solutions))
    assert twice == rows  # the same prompt and answer is learnt once


def test_mended_rows_of_packaged_tasks_hold_triton_solutions(tmp_path: Path) -> None:
    more = ("--data.path", "packaged:pointwise", "--rollout.max_turns", "2", "--keep", "mended")
    assert main(flags(tmp_path, 8, *more)) == 0
    rows = read(tmp_path / "talks.sft.jsonl")
    assert rows
    assert all("@triton.jit" in row["completion"] for row in rows)
    assert conversation_rows(str(tmp_path / "talks.sft.jsonl")) is not None
