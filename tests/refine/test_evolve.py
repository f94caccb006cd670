"""The strategy evolve derives answers from an archive: cells, parents, prompts, budgets, its page, and resuming."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chat_server import Reply, chat_server, completion
from kernel_coder.evaluate.answers import Answer, Poll, Request
from kernel_coder.judge import Verdict, example_verdict
from kernel_coder.library import Library
from kernel_coder.refine.__main__ import main
from kernel_coder.refine.archive import Archive, cell_of, draw_parents
from kernel_coder.refine.config import parse
from kernel_coder.refine.evolve import hint, members, profile
from kernel_coder.refine.search import load_module
from kernel_coder.refine.trajectory import Attempt, Trajectory
from kernel_coder.run.hashes import sha256_text
from pretend import PretendJudge, said, write_tasks

AXES = ("speedup", "kernels")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks", 1) / "1_scale.py"


def attempt(
    turn: int, sample: int, verdict: Verdict | None, code: str = "", parents: tuple[tuple[int, int], ...] = ()
) -> Attempt:
    return Attempt(turn, sample, (), code, code, None, 1, 0.0, parents=parents, verdict=verdict)


def correct(speedup: float | None = None) -> Verdict:
    return example_verdict("correct", speedup=speedup)


# ---- the archive -----------------------------------------------------------------------------------------------------


def test_cell_of_an_answer_has_one_label_per_axis() -> None:
    kernel = "@triton.jit\ndef f(x, BLOCK): tl.load(x)\n"
    every = ("speedup", "memory", "tile", "kernels")
    one = attempt(1, 0, correct(1.7), kernel + "f[grid](x, BLOCK=128)")
    assert cell_of(one, every) == ("1.5 to 2x", "vector", "128", "1")
    assert cell_of(attempt(1, 0, correct(9.0), kernel * 5), every) == ("4x or more", "vector", "none", "4+")
    assert cell_of(attempt(1, 0, correct(0.1), ""), AXES) == ("0 to 0.5x", "0")
    assert cell_of(attempt(1, 0, correct(), ""), ("speedup",)) == ("untimed",)
    assert cell_of(attempt(1, 0, example_verdict("timeout"), "def ("), AXES) == ("timeout", "0")


def test_the_archive_keeps_the_best_answer_of_each_cell() -> None:
    first, better, other = attempt(1, 0, correct(1.6), "a"), attempt(1, 1, correct(1.9), "b"), attempt(1, 2, correct(3))
    equal, wrong = attempt(2, 0, correct(1.9), "c"), attempt(2, 1, example_verdict("wrong_output"), "d")
    nothing = replace(attempt(2, 2, example_verdict("format_error")), code=None)
    failed = attempt(2, 3, example_verdict("harness_failed"), "e")
    archive = Archive.of([first, better, other, equal, wrong, nothing, failed], AXES)
    assert archive.elites == [other, better, wrong]


def test_novelty_is_the_distance_to_the_nearest_elites() -> None:
    alike = [attempt(1, k, correct(speed), "abcdefgh" * 20) for k, speed in enumerate((1.2, 1.6, 3.0))]
    strange = attempt(1, 9, correct(0.7), "0123456" * 20)
    novelties = Archive.of([*alike, strange], AXES).novelties()
    assert novelties[strange.key] == 1.0
    assert all(novelties[one.key] == pytest.approx(1 / 3) for one in alike)
    assert Archive.of([strange], AXES).novelties() == {strange.key: 1.0}


def test_parents_are_drawn_by_fitness_or_by_novelty() -> None:
    alike = [attempt(1, k, correct(speed), "abcdefgh" * 20) for k, speed in enumerate((1.2, 1.6, 3.0))]
    strange = attempt(1, 9, correct(0.7), "0123456" * 20)
    archive = Archive.of([*alike, strange], AXES)

    def share(novelty: float, children: dict[tuple[int, int], int]) -> float:
        drawn = [draw_parents(archive, 1, Random(k), novelty=novelty, children=children) for k in range(400)]
        return sum(one == [strange] for one in drawn) / len(drawn)

    assert share(0.0, {}) == pytest.approx(1 / 15, abs=0.04)  # rank 4: 1/8 out of 1 + 1/2 + 1/4 + 1/8
    assert share(1.0, {}) == pytest.approx(1 / 2, abs=0.08)
    assert share(1.0, {strange.key: 9}) < 0.15  # it already has nine children
    several = draw_parents(archive, 3, Random(0), novelty=0.5, children={})
    assert len({one.key for one in several}) == 3
    assert several == sorted(several, key=lambda one: one.verdict.speedup if one.verdict else 0)


def test_islands_hold_their_own_answers_and_the_best_of_others_after_a_migration(module: Path) -> None:
    config, _ = parse([str(module), "--strategy", "evolve", "--islands", "2", "--migrate-every", "3"])
    attempts = [attempt(turn, k, correct(1.0 + turn + k), f"{turn} {k}") for turn in range(1, 5) for k in range(4)]
    own = [one for one in attempts if one.sample in (0, 2)]
    assert members(attempts, config, 0, 3) == own
    assert members(attempts, config, 0, 5) == [*own, next(one for one in attempts if one.key == (3, 3))]


def test_hints_follow_from_the_measurements() -> None:
    one = attempt(1, 0, replace(correct(2.0), kernel_share=0.5, kernels="f: 255 registers, 8 spills"), "x")
    assert "remaining PyTorch operators" in hint(one, Random(0))
    assert one.verdict is not None
    assert profile(one.verdict).splitlines() == [
        "time of a call: 1 ms; of the reference: 2 ms",
        "share of the device time in your own kernels: 50%",
        "f: 255 registers, 8 spills",
    ]
    one.verdict = replace(one.verdict, kernel_share=0.95)
    assert "Registers spill" in hint(one, Random(0))
    fused = attempt(1, 0, correct(2.0), "@triton.jit\ndef f(x): tl.load(x)\n" * 2)
    assert len({hint(fused, Random(k)) for k in range(50)}) == 5
    assert hint(attempt(1, 0, example_verdict("timeout"), "x"), Random(0)) == ""
    assert profile(correct()) == ""


# ---- the search ------------------------------------------------------------------------------------------------------


class Climbing:
    """Each answer is faster than the last parent in its prompt."""

    def __init__(self, first: str | tuple[str, float] = ("correct", 1.0), say_again: bool = False) -> None:
        self.first, self.say_again = first, say_again
        self.asked: list[Request] = []

    def __call__(self, config: Any) -> Climbing:
        return self

    def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
        for request in requests:
            poll()
            self.asked.append(request)
            shown = [message["content"] for message in request.messages if message["role"] == "assistant"]
            found = re.search(r"# correct ([\d.]+)", shown[-1]) if shown else None
            text = said("correct", round(1.5 * float(found[1]), 3)) if found else said(*_pair(self.first))
            mark = "" if self.say_again else f"  # {len(self.asked)}"
            yield request, Answer(text.replace("class ModelNew: ...", f"class ModelNew: ...{mark}"), "stop", 10, 20)

    def close(self) -> None: ...


def _pair(first: str | tuple[str, float]) -> tuple[str, float | None]:
    return (first, None) if isinstance(first, str) else first


class HonestJudge(PretendJudge):
    """A fake judge whose verdicts hold the hash of the candidate."""

    def verdict(self, task: Any, code: str) -> Verdict:
        return replace(super().verdict(task, code), candidate_hash=sha256_text(code))


def evolve(module: Path, model: Any, *flags: str, judge: Any = None, out: str = "out") -> tuple[int, Path]:
    folder = module.parent.parent / out
    arguments = [str(module), "--strategy", "evolve", "--output", str(folder), "--device", "cpu"]
    given = [*arguments, "--judge.workers", "2", *flags]
    return main(given, make_model=model, make_judge=judge or HonestJudge()), folder


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "trajectory.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_answers_are_derived_from_parents_until_the_budget_is_spent(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = module.parent.parent / "library.sqlite"
    code, folder = evolve(
        module, Climbing(), "--evaluations", "40", "--library", str(library), "--to-library", "--base-url", "http://x"
    )
    assert code == 0
    assert "the budget of 40 evaluations is spent" in capsys.readouterr().out
    answers = {(one["turn"], one["sample"]): one for one in records(folder, "answer")}
    verdicts = {(one["turn"], one["sample"]): one["verdict"] for one in records(folder, "verdict")}
    assert len(verdicts) == 40
    with_parents = [one for one in answers.values() if one["parents"]]
    assert 0.5 * len(answers) < len(with_parents) < len(answers)  # the other answers have no parents
    for one in with_parents:
        parents = [tuple(parent) for parent in one["parents"]]
        assert all(parent < (one["turn"], 0) for parent in parents)
        shown = [message["content"] for message in one["messages"] if message["role"] == "assistant"]
        assert [answers[parent]["code"] in text for parent, text in zip(parents, shown, strict=True)] == [True] * len(
            shown
        )
        assert "Write a faster version" in one["messages"][-1]["content"]
        assert "time of a call" in one["messages"][-1]["content"]
    assert {1, 2} <= {len(one["parents"]) for one in with_parents} <= {1, 2, 3, 4}
    assert max(verdict["speedup"] for verdict in verdicts.values()) > 1.2
    page = (folder / "report.html").read_text()
    assert page.count("(best)") == 1
    assert "<h2>The archive</h2>" in page
    assert "What it changed in its parent" in page
    assert "+# correct" in page
    with Library(library, create=False) as found:
        entries = found.search(limit=100)
    assert len(entries) == 40
    hashes = {entry.verdict.candidate_hash for entry in entries}
    assert all(set(entry.parents) <= hashes for entry in entries)
    assert sum(bool(entry.parents) for entry in entries) > 15


def test_prompt_to_a_server_shows_the_parents_as_a_conversation(module: Path) -> None:
    bodies: list[list[dict[str, str]]] = []

    def behave(number: int, body: dict[str, Any]) -> Reply:
        bodies.append(body["messages"])
        text = said("correct", 1.0 + number)
        return completion(text.replace("class ModelNew: ...", f"class ModelNew: ...  # {number}"))

    with chat_server(behave) as server:
        flags = ["--model", "m", "--base-url", server.url, "--evaluations", "24", "--islands", "1"]
        assert evolve(module, None, *flags)[0] == 0
    assert all(messages[-1]["role"] == "user" for messages in bodies)
    lengths = [sum(message["role"] == "assistant" for message in messages) for messages in bodies]
    assert lengths[:8] == [0] * 8
    assert max(lengths) > 1


def test_half_of_the_answers_are_fresh_until_one_is_correct(module: Path) -> None:
    model = Climbing("timeout")
    code, folder = evolve(module, model, "--evaluations", "48", "--fresh", "0", "--context-turns", "1")
    assert code == 1
    share = sum(not one["parents"] for one in records(folder, "answer")[8:]) / 40
    assert 0.3 < share < 0.7


class Alternating(Climbing):
    """Every second answer does not compile."""

    def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
        for request in requests:
            self.asked.append(request)
            count = len(self.asked)
            text = said("correct", 1.0 + count / 100) if count % 2 else said("compile_error")
            text = text.replace("class ModelNew: ...", f"class ModelNew: ...  # {count}")
            yield request, Answer(text, "stop", 10, 20)


def test_all_parents_are_correct_once_an_answer_is_correct(module: Path) -> None:
    code, folder = evolve(module, Alternating(), "--evaluations", "48", "--islands", "1", "--novelty", "1")
    assert code == 0
    verdicts = {(one["turn"], one["sample"]): one["verdict"] for one in records(folder, "verdict")}
    parents = {tuple(parent) for one in records(folder, "answer") for parent in one["parents"]}
    assert len(parents) > 3
    assert all(verdicts[parent]["correct"] for parent in parents)


def test_search_ends_when_the_model_repeats_itself(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evolve(module, Climbing(("correct", 1.0), say_again=True), "--evaluations", "6", "--fresh", "1")
    assert "24 answers gave only 1 different candidates" in capsys.readouterr().out


def test_tokens_and_seconds_limit_the_search(module: Path) -> None:
    assert evolve(module, Climbing(), "--tokens", "200")[0] == 0
    assert len(records(module.parent.parent / "out", "answer")) == 10  # of 20 tokens each
    began = time.monotonic()
    assert evolve(module, Climbing(), "--seconds", "0.5", out="other")[0] == 0
    assert time.monotonic() - began < 30


def test_mistakes_give_one_sentence(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        (["--islands", "9"], "islands must be at most parallel"),
        (["--axes", "speedup,size"], "--axes: input should be 'speedup', 'memory', 'tile' or 'kernels'"),
        (["--novelty", "2"], "--novelty: input should be less than or equal to 1"),
        (["--examples", "1", "--library", "/none/of.sqlite"], "there is no library"),
    ):
        assert evolve(module, Climbing(), *flags)[0] == 2
        assert words in capsys.readouterr().err


def test_stopped_search_resumes_to_the_answers_of_an_uninterrupted_search(module: Path) -> None:
    class Stopped(Climbing):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            for one in super().answer(requests, poll):
                if len(self.asked) == 21:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.05)
                    poll()
                yield one

    class Named(Climbing):
        """Marks answers with the seed of the request, so that they do not depend on earlier requests."""

        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            for request, answer in super().answer(requests, poll):
                yield request, replace(answer, text=re.sub(r"# \d+(?=\n)", f"# {request.seed}", answer.text))

    stopped = type("StoppedNamed", (Named, Stopped), {})
    flags = ["--turns", "5"]
    assert evolve(module, stopped(), *flags)[0] == 75
    folder = module.parent.parent / "out"
    assert 8 < len(records(folder, "answer")) < 40
    assert evolve(module, Named(), *flags, "--resume")[0] == 0
    assert evolve(module, Named(), *flags, out="straight")[0] == 0

    def found(folder: Path) -> dict[tuple[int, int], Any]:
        return {(one["turn"], one["sample"]): (one["text"], one["parents"]) for one in records(folder, "answer")}

    assert found(folder) == found(folder.parent / "straight")
    assert len(found(folder)) == 40


KILLED = """
import sys, time
sys.path[:0] = {paths!r}
import test_evolve
class Slow(test_evolve.HonestJudge):
    def evaluate(self, *given):
        time.sleep(0.01)
        return super().evaluate(*given)
sys.exit(test_evolve.main(sys.argv[1:], make_model=test_evolve.Climbing(), make_judge=Slow()))
"""


def test_search_killed_twice_loses_no_judged_answer(module: Path) -> None:
    folder, library = module.parent.parent / "out", module.parent.parent / "library.sqlite"
    tests = Path(__file__).parents[1]
    code = KILLED.format(paths=[str(tests / name) for name in ("refine", "evaluate", "")])
    command = [sys.executable, "-c", code, str(module), "--strategy", "evolve", "--output", str(folder), "--resume"]
    command += ["--evaluations", "100000", "--device", "cpu", "--library", str(library), "--to-library"]
    seen = 0
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(30)]
            assert lines[-1].startswith("round ")
            os.kill(process.pid, signal.SIGKILL)
            told = lines + process.stdout.read().splitlines(keepends=True)
        seen += sum(line.startswith("round ") and line.endswith("\n") for line in told)
        config, _ = parse([str(module), "--strategy", "evolve", "--output", str(folder)])
        with Trajectory(config.folder, sha256_text(load_module(config).reference), resume=True) as trajectory:
            judged = [one for one in trajectory.attempts.values() if one.is_judged]
            assert len(judged) >= seen
            assert trajectory.best is not None
        with Library(library, create=False) as found:
            assert len(found) >= len({one.code for one in judged}) - 1  # the last may be missing
    assert evolve(module, Climbing(), "--resume", "--evaluations", str(seen + 8))[0] == 0
