"""Training on verdicts: the judge evaluates each distinct answer once; its verdicts are rewarded and logged."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_coder.judge.supervisor.open
import pytest
import torch
from fake_judge import FakeJudge
from kernel_coder.judge import Outcome, Verdict
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.supervisor.batching import askers
from kernel_coder.rollout import Rollout, Turn
from kernel_coder.run.errors import EXIT_STOPPED, UsageError
from kernel_coder.train import rollouts
from kernel_coder.train.__main__ import main
from kernel_coder.train.config import load_config
from tiny_run import flags, records, summary, timeless

JUDGED = {"rewards": "kevin", "judge__device": "cpu"}

ANSWERS = [
    "I do not know.",
    *(f"# outcome: {outcome}" for outcome in ("correct", "wrong_output", "compile_error", "rejected", "timeout")),
    "# outcome: correct\n# speedup: 2.0",
]


def answer(code: str) -> str:
    return f"<thinking>so</thinking><answer>```python\n{code}\n```</answer>" if code.startswith("#") else code


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeJudge]]:
    monkeypatch.setattr(kernel_coder.judge.supervisor.open, "Judge", FakeJudge)
    monkeypatch.setattr(FakeJudge, "made", [])
    yield FakeJudge.made
    assert not any(judge.is_open for judge in FakeJudge.made)


def say(monkeypatch: pytest.MonkeyPatch, choose: Callable[[Rollout], str]) -> None:
    """The model samples as usual. Then `choose` replaces the text of each answer."""
    converse = rollouts.converse

    def other(engine: Any, conversations: Any, *given: Any, **more: Any) -> list[Rollout]:
        tasks = {one.opening.ids: one.opening.task for one in conversations}

        class Other:
            def generate(self, prompts: Any, *rest: Any, **options: Any) -> list[Turn]:
                turns = engine.generate(prompts, *rest, **options)
                return [replace(turn, text=answer(choose(Rollout(tasks[turn.prompt_ids], (turn,))))) for turn in turns]

        return converse(Other(), conversations, *given, **more)

    monkeypatch.setattr(rollouts, "converse", other)


@pytest.fixture
def varied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of every kind. The sampled text selects one."""
    say(monkeypatch, lambda one: ANSWERS[zlib.crc32(one.turns[0].text.encode()) % len(ANSWERS)])


def samples(run_dir: Path) -> list[dict[str, Any]]:
    return records(run_dir / "samples.jsonl")


@pytest.mark.usefixtures("varied")
def test_verdicts_are_rewarded_and_logged(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(tasks, tmp_path, **JUDGED, judge__checks=3, judge__timeout_s=5, judge__backend="cpp")) == 0
    assert fake[0].config == JudgeConfig(checks=3, timeout_s=5)
    assert (fake[0].device, fake[0].opened) == ("cpu", 1)
    lines = samples(tmp_path)
    seen = set()
    for line in lines:
        text = (tmp_path / "samples.jsonl").read_text().splitlines()[lines.index(line)]
        verdict = Verdict.from_json(json.dumps(json.loads(text)["verdict"]))
        seen.add(verdict.outcome)
        assert (verdict.task, verdict.backend) == (line["task"], "cpp")
        expected = 0.3 + (1.9 if verdict.speedup else 0.0) if verdict.correct else 0.0
        assert line["reward"] == pytest.approx(expected)
    assert seen == {
        Outcome(name) for name in ("format_error", "correct", "wrong_output", "compile_error", "rejected", "timeout")
    }
    for line in records(tmp_path / "metrics.jsonl"):
        shares = [line[f"judge/{outcome}"] for outcome in Outcome]
        assert sum(shares) == pytest.approx(1.0)
        assert 0 < line["judge/distinct"] <= 8
        assert line["time/verdict_p50_s"] == line["time/verdict_p95_s"] == 0.75
        assert line["time/judge_s"] >= 0
    assert summary(tmp_path)["judge_correct_last"] == records(tmp_path / "metrics.jsonl")[-1]["judge/correct"]
    assert "correct 0." in capsys.readouterr().out


@pytest.mark.usefixtures("varied")
def test_equal_answers_are_judged_once_and_answers_without_code_never(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path
) -> None:
    assert main(flags(tasks, tmp_path, **JUDGED)) == 0
    wanted = {
        (line["step"], line["task"], line["completion"])
        for line in samples(tmp_path)
        if line["completion"] != ANSWERS[0]
    }
    assert len(fake[0].judged) == len(wanted) < len(samples(tmp_path))
    format_errors = [line for line in samples(tmp_path) if line["completion"] == ANSWERS[0]]
    assert format_errors
    for line in format_errors:
        assert line["verdict"]["outcome"] == "format_error"
        assert line["reward"] == 0.0
        assert line["verdict"]["reason"]


def test_answers_with_outcome_harness_failed_have_no_reward(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    say(monkeypatch, lambda one: f"# outcome: {('harness_failed', 'correct')[len(one.turns[0].text) % 2]}")
    assert main(flags(tasks, tmp_path, **JUDGED)) == 0
    for line in samples(tmp_path):
        assert (line["reward"] is None) == (line["verdict"]["outcome"] == "harness_failed")
    for line in records(tmp_path / "metrics.jsonl"):
        assert line["unscored"] == 8 * line["judge/harness_failed"]
    assert "first: an example of harness_failed" in caplog.text


def test_run_stops_when_the_judge_fails_on_every_answer(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, lambda one: "# outcome: harness_failed")
    assert main(flags(tasks, tmp_path, **JUDGED, run__max_skipped_updates=2)) == 3


@pytest.mark.usefixtures("varied")
def test_held_out_answers_are_judged_too(fake: list[FakeJudge], tasks: Path, tmp_path: Path) -> None:
    changes = {**JUDGED, "run__eval_steps": 2, "eval__num_tasks": 2, "run__eval_on_start": "true"}
    assert main(flags(tasks, tmp_path, **changes)) == 0
    lines = records(tmp_path / "metrics.jsonl")
    assert "eval/judge/correct" in lines[0]
    assert "eval/judge/correct" in lines[2]
    assert summary(tmp_path)["eval_judge_correct_last"] == lines[4]["eval/judge/correct"]


@pytest.mark.usefixtures("varied")
def test_run_stopped_while_judging_resumes_to_the_same_bits(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge draws random numbers here, and they must not change the run."""
    assert main(flags(tasks, tmp_path / "straight", **JUDGED)) == 0
    judged, is_resumed = FakeJudge.evaluate, False

    def evaluate(self: FakeJudge, *given: Any, **more: Any) -> Verdict:
        number = next(self.begun)
        if number == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        while number >= 12 and self.is_open and not is_resumed:  # so that timing does not change how many begin
            time.sleep(0.01)
        random.random(), torch.rand(3)
        return judged(self, *given, **more)

    monkeypatch.setattr(FakeJudge, "evaluate", evaluate)
    assert main(flags(tasks, tmp_path / "run", **JUDGED)) == EXIT_STOPPED
    assert 0 < summary(tmp_path / "run")["steps"] < 4
    # The stopped run drops this step. A call of `evaluate` that had already begun finds the judge closed.
    assert 12 - askers("cpu", fake[1].config) < len(fake[1].judged) <= 12
    is_resumed = True
    assert main([*flags(tasks, tmp_path / "run", **JUDGED), "--resume"]) == 0
    assert timeless(tmp_path / "run") == timeless(tmp_path / "straight")
    assert summary(tmp_path / "run")["weights_sha256"] == summary(tmp_path / "straight")["weights_sha256"]
    assert [line["verdict"]["outcome"] for line in samples(tmp_path / "run")] == [
        line["verdict"]["outcome"] for line in samples(tmp_path / "straight")
    ]


def test_stopping_does_not_wait_for_a_candidate(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate may run for minutes."""
    judged = FakeJudge.evaluate

    def evaluate(self: FakeJudge, *given: Any, **more: Any) -> Verdict:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(600):
            if not self.is_open:  # the stopping run has closed the judge
                return judged(FakeJudge.__enter__(FakeJudge()), *given, **more)
            time.sleep(0.1)
        raise AssertionError("nobody stopped it")

    monkeypatch.setattr(FakeJudge, "evaluate", evaluate)
    say(monkeypatch, lambda one: "# outcome: timeout")
    started = time.monotonic()
    assert main(flags(tasks, tmp_path, **JUDGED)) == EXIT_STOPPED
    assert time.monotonic() - started < 30
    assert summary(tmp_path)["steps"] == 0
    for judge in fake:
        judge.close()


def test_run_without_judge_logs_no_judge_metrics_and_no_verdicts(tasks: Path, tmp_path: Path) -> None:
    assert main(flags(tasks, tmp_path, run__max_steps=1)) == 0
    assert not any(name.startswith("judge/") for name in records(tmp_path / "metrics.jsonl")[0])
    assert "verdict" not in samples(tmp_path)[0]


def mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said.removeprefix("error: ").strip()


def test_mistakes_about_the_judge_give_one_sentence(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(**changes: Any) -> str:
        return mistake(flags(tasks, tmp_path, **changes), capsys)

    assert said(rewards="dr_kernel") == (
        "reward correct is about verdicts, and there is no judge: add the section judge "
        "(judge: {} in YAML, --judge.device cpu as a flag)"
    )
    assert said(judge__chekcs=3) == "unknown flag --judge.chekcs; did you mean judge.checks?"
    assert said(judge__checks=0) == "judge.checks: input should be greater than or equal to 1; got '0'"
    assert (
        said(judge__device="gpu")
        == "judge.device: must be auto, cpu, cuda, cuda:N or several such as cuda:1,cuda:2; got gpu"
    )
    assert said(judge__device="cuda:99").startswith("judge.device is cuda:99, but ")
    assert said(judge__backend="mojo").startswith("judge.backend: input should be 'triton', 'cuda', 'cpp' or 'torch'")
    assert said(rewards="kevni").startswith("unknown reward kevni")
    assert fake == []


def test_missing_sandbox_is_refused_before_the_old_run_is_removed(
    fake: list[FakeJudge],
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(self: FakeJudge) -> None:
        raise SandboxError("untrusted code is not run here")

    run = flags(tasks, tmp_path, **JUDGED, run__max_steps=1, run__overwrite_output_dir="true")
    assert main(run) == 0
    monkeypatch.setattr(FakeJudge, "__enter__", refuse)
    assert mistake(run, capsys) == "judge: untrusted code is not run here"
    assert (tmp_path / "metrics.jsonl").exists()


def test_note_is_printed_when_no_reward_uses_verdicts(
    fake: list[FakeJudge], tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(tasks, tmp_path, judge__device="cpu", run__max_steps=1)) == 0
    assert "no reward names the column verdict" in capsys.readouterr().out


@pytest.mark.parametrize("preset", ["kernel_coder", "kevin", "dr_kernel", "kernel_tune"])
def test_preset_name_stands_for_its_list_of_rewards(preset: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"rewards: {preset}\njudge: {{}}\n")
    config = load_config(tmp_path / "c.yaml")
    assert len(config.rewards) > 1
    assert load_config(None, ["--rewards", preset, "--judge", "{}"]) == config
    (tmp_path / "c.yaml").write_text(f"rewards: [{preset}, {{name: tiny_run:letters, weight: 0.2}}]\njudge: {{}}\n")
    mixed = load_config(tmp_path / "c.yaml")
    assert [reward.name for reward in mixed.rewards] == [
        *(reward.name for reward in config.rewards),
        "tiny_run:letters",
    ]
    (tmp_path / "copy.yaml").write_text(mixed.to_yaml())
    assert load_config(tmp_path / "copy.yaml") == mixed


def test_judge_section_sets_the_fields_of_judge_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("judge: {families: [own, normal], seed: 3, require: [seccomp]}\n")
    config = load_config(tmp_path / "c.yaml", ["--judge.workers", "2", "--judge.training", "false"])
    assert config.judge is not None
    assert config.judge.judge_config() == JudgeConfig(
        families=("own", "normal"), seed=3, require=("seccomp",), workers=2, training=False
    )
    (tmp_path / "c.yaml").write_text("judge: {chekcs: 3}\n")
    with pytest.raises(UsageError, match="unknown key judge\\.chekcs in the config; did you mean judge\\.checks"):
        load_config(tmp_path / "c.yaml")


# ---- the real judge ------------------------------------------------------------------------------------------------


def test_known_solutions_are_rewarded_and_broken_ones_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packaged tasks and Triton's interpreter. Only the text of the answers is replaced."""

    def solution(one: Rollout) -> str:
        text = f"# {zlib.crc32(one.turns[0].text.encode()) % 2}\n{one.task.solution}"
        return text if text.startswith("# 0") else text.replace("tl.store(", "tl.store(0 * ", 1)

    say(monkeypatch, solution)
    changes = {"rewards": "kevin", "judge__device": "cpu", "run__max_steps": 2, "data__max_prompt_length": 1500}
    changes |= {"judge__hidden_shapes": "off", "judge__allow": '["library_matmul"]'}
    assert main(flags(Path("packaged"), tmp_path, **changes)) == 0
    lines = samples(tmp_path)
    outcomes = {line["verdict"]["outcome"] for line in lines if "# 0" in line["completion"]}
    assert outcomes == {"correct"}, [line["verdict"]["feedback"] for line in lines]
    for line in lines:
        verdict = Verdict.from_json(json.dumps(line["verdict"]))
        assert verdict.interpreted
        assert line["reward"] == pytest.approx(0.3 if verdict.correct else 0.0)
        assert verdict.correct == ("# 0" in line["completion"])
    assert any(not line["verdict"]["correct"] for line in lines)
    assert all(line["grad_norm"] >= 0 for line in records(tmp_path / "metrics.jsonl"))
