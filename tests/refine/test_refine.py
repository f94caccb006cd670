"""Searching for a kernel: strategies, budgets, and the files that remain after a failure."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, completion, refusal
from kernel_coder.evaluate import server as client
from kernel_coder.evaluate.answers import Answer, Poll, Request
from kernel_coder.evaluate.errors import HarnessFailed, ServerFailed
from kernel_coder.judge import Verdict
from kernel_coder.refine.__main__ import main
from kernel_coder.refine.config import parse
from kernel_coder.refine.search import Search, load_module
from kernel_coder.refine.trajectory import Trajectory
from kernel_coder.run.config import load
from kernel_coder.run.errors import StopRequested
from kernel_coder.train.config import TrainConfig
from pretend import PretendJudge, said, write_tasks

NEVER = 10**9


@pytest.fixture
def module(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks", 1) / "1_scale.py"


class Model:
    """Answers by round and sample. Raises after ``die_after`` answers."""

    def __init__(
        self,
        outcome: Callable[[int, int], str | tuple[str, float]],
        die: Exception | None = None,
        die_after: int = NEVER,
    ) -> None:
        self.outcome, self.die, self.die_after = outcome, die, die_after
        self.asked: list[Request] = []
        self.rounds: dict[int, int] = {}
        self.closed = 0

    def __call__(self, config: Any) -> Model:
        self.config = config
        return self

    def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
        for request in requests:
            if len(self.asked) >= self.die_after and self.die is not None:
                raise self.die
            poll()
            self.asked.append(request)
            turn = self.rounds[request.sample] = self.rounds.get(request.sample, 0) + 1
            found = self.outcome(turn, request.sample)
            text = said(found) if isinstance(found, str) else said(*found)
            yield (
                request,
                Answer(
                    text.replace("class ModelNew: ...", f"class ModelNew: ...  # {turn} {request.sample}"),
                    "stop",
                    10,
                    20,
                ),
            )

    def close(self) -> None:
        self.closed += 1


def search(
    module: Path, model: Any, judge: Any = None, *flags: str, out: Path | None = None, **changes: Any
) -> tuple[int, Path]:
    folder = out or module.parent.parent / "out"
    arguments = [str(module), "--output", str(folder), "--device", "cpu", "--judge.workers", "1", *flags]
    for name, value in changes.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return main(arguments, make_model=model, make_judge=judge or PretendJudge()), folder


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "trajectory.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def outcomes(folder: Path) -> list[str]:
    return [record["verdict"]["outcome"] for record in records(folder, "verdict")]


class Tags(HTMLParser):
    """Fails on any tag that would load another file."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {name for name, _ in attrs} & {"src", "href"}


# ---- strategies ------------------------------------------------------------------------------------------------------

ROUNDS = ["compile_error", "wrong_output", ("correct", 1.5), ("correct", 3.0), ("correct", 2.0)]


def test_serial_conversations_contain_the_feedback_and_the_best_answer_is_kept(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model(lambda turn, sample: ROUNDS[turn - 1])
    code, folder = search(module, model, turns=5, context_turns=2, earlier_reasoning="drop")
    assert code == 0
    assert "# 4 0" in (folder / "best.py").read_text()
    assert outcomes(folder) == ["compile_error", "wrong_output", *["correct"] * 3]
    roles = [[m["role"] for m in record["messages"]] for record in records(folder, "answer")]
    assert roles == [["user", *["assistant", "user"] * k] for k in (0, 1, 2, 2, 2)]
    third = records(folder, "answer")[2]["messages"]
    assert [m["content"].split("\n")[0] for m in third[2::2]] == ["compile_error", "wrong_output"]
    assert "<thinking>" not in third[1]["content"]  # earlier reasoning is dropped
    page = (folder / "report.html").read_text()
    Tags().feed(page)
    assert "3.00 times as fast" in page
    assert page.count("<details>") == 10
    told = capsys.readouterr().out
    assert told.count("<- best") == 2
    assert str(folder / "best.py") in told
    assert model.closed == 1


def test_parallel_conversations_see_only_their_own_answers(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(lambda turn, sample: "timeout" if sample else "crashed")
    code, folder = search(module, model, turns=3, parallel=2, context_turns=4)
    assert code == 1  # nothing correct
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2] == "no correct kernel found: 3 crashed, 3 timeout"
    assert printed[-1] == f"next: more answers, as in kernel-coder refine {module} --resume --turns 6"
    assert "<svg" not in (folder / "report.html").read_text()
    assert not (folder / "best.py").exists()
    for record in records(folder, "answer"):
        told = [m["content"].split("\n")[0] for m in record["messages"][2::2]]
        assert told == ["timeout" if record["sample"] else "crashed"] * (record["turn"] - 1)
    assert "No correct kernel was found" in (folder / "report.html").read_text()


def test_answers_of_strategy_parallel_see_no_other_answers_and_differ_by_seed(module: Path) -> None:
    model = Model(lambda turn, sample: ("correct", float(turn + sample)))
    code, folder = search(module, model, strategy="parallel", turns=3, parallel=4)
    assert code == 0
    assert len({len(record["messages"]) for record in records(folder, "answer")}) == 1
    assert len({request.seed for request in model.asked}) == 12
    assert "# 3 3" in (folder / "best.py").read_text()


def test_best_of_turns_shows_the_best_answers_of_all_conversations(module: Path) -> None:
    speed = {(1, 0): 1.0, (1, 1): 4.0, (2, 0): 2.0, (2, 1): 3.0}
    model = Model(lambda turn, sample: ("correct", speed[turn, sample]) if turn < 3 else "timeout")
    _, folder = search(module, model, strategy="best_of_turns", turns=3, parallel=2, context_turns=3)
    last = records(folder, "answer")[-1]["messages"]
    shown = [re.search(r"# (\d \d)", m["content"]) for m in last if m["role"] == "assistant"]
    assert [one[1] for one in shown if one] == ["2 0", "2 1", "1 1"]  # the best is last, before its feedback
    assert last[-1]["content"] == "correct, 4.00x"


# ---- verdicts while answers are written ------------------------------------------------------------------------------


class SlowJudge(PretendJudge):
    """Holds the verdict on the first answer until ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def evaluate(self, task: Any, code: str, backend: str) -> Verdict:
        if "# 1 0" in code:
            assert self.go_on.wait(20)
        return super().evaluate(task, code, backend)


class Noticing(Model):
    """Sets ``go_on`` of the judge when the n-th answer is asked for."""

    def __init__(self, judge: SlowJudge, count: int) -> None:
        super().__init__(lambda turn, sample: "timeout")
        self.judge, self.count = judge, count

    def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
        for one in super().answer(requests, poll):
            if len(self.asked) == self.count:
                self.judge.go_on.set()
            yield one


def test_slow_verdict_does_not_delay_rounds_of_strategy_parallel(module: Path) -> None:
    judge = SlowJudge()
    model = Noticing(judge, 4)  # the fourth answer belongs to the second round
    flags = {"strategy": "parallel", "turns": 3, "parallel": 2}
    _, folder = search(module, model, judge, "--judge.workers", "2", **flags)
    assert outcomes(folder) == ["timeout"] * 6  # no verdict was lost by waiting too long


def keys(folder: Path) -> list[tuple[int, int]]:
    return [(record["turn"], record["sample"]) for record in records(folder, "answer")]


def test_slow_verdict_delays_only_its_own_conversation(module: Path) -> None:
    judge = SlowJudge()
    model = Noticing(judge, 4)  # the third answer of the other conversation
    _, folder = search(module, model, judge, "--judge.workers", "2", turns=3, parallel=2)
    assert keys(folder) == [(1, 0), (1, 1), (2, 1), (3, 1), (2, 0), (3, 0)]
    assert outcomes(folder) == ["timeout"] * 6  # no verdict was lost by waiting too long


class Writing(Noticing):
    """Takes 0.3 s for each batch, and records the batches."""

    def __init__(self, judge: SlowJudge, count: int) -> None:
        super().__init__(judge, count)
        self.batches: list[list[int]] = []

    def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
        self.batches.append([request.sample for request in requests])
        time.sleep(0.3)
        yield from super().answer(requests, poll)


def test_conversations_with_nearly_simultaneous_verdicts_share_a_batch(module: Path) -> None:
    class Quick(SlowJudge):
        def evaluate(self, task: Any, code: str, backend: str) -> Verdict:
            time.sleep(0.01 * int(code.rstrip()[-1]))
            return super().evaluate(task, code, backend)

    judge = Quick()
    model = Writing(judge, 7)  # once the three others have their second answers
    search(module, model, judge, "--judge.workers", "4", turns=2, parallel=4)
    assert model.batches == [[0, 1, 2, 3], [1, 2, 3], [0]]


def test_local_model_gets_at_most_batch_size_requests_at_a_time(module: Path) -> None:
    judge = SlowJudge()
    judge.go_on.set()
    model = Writing(judge, NEVER)
    search(module, model, judge, turns=2, parallel=3, batch_size=2)
    assert sorted(sample for batch in model.batches for sample in batch) == [0, 0, 1, 1, 2, 2]
    assert max(map(len, model.batches)) == 2


def test_conversation_with_a_server_continues_while_another_waits_for_its_answer(module: Path) -> None:
    others = threading.Event()

    def behave(number: int, body: dict[str, Any]) -> Reply:
        if number == 0:
            assert others.wait(20)
        if number == 3:  # the third answer of the conversation that was not held up
            others.set()
        return completion(said("timeout"))

    folder = module.parent.parent / "out"
    with chat_server(behave) as server:
        flags = ["--model", "m", "--base-url", server.url, "--turns", "3", "--parallel", "2", "--device", "cpu"]
        assert main([str(module), "--output", str(folder), *flags], make_judge=PretendJudge()) == 1
    (first, quick), (second, same), *rest = keys(folder)  # the held answer waited for this conversation
    assert (first, second, same) == (1, 2, quick)
    assert sorted(rest) == sorted([(3, quick), *((turn, 1 - quick) for turn in (1, 2, 3))])


def test_default_settings_for_nano_are_those_of_its_training(module: Path) -> None:
    names = ("prompt_template", "feedback_template", "context_turns", "earlier_reasoning", "max_new_tokens")
    taught = ("nano", "nano", 1, "keep", 384)
    usual = ("kernel_coder", "feedback", 4, "drop", 2048)

    def chosen(*flags: str) -> tuple[Any, ...]:
        config, _ = parse([str(module), *flags])
        return tuple(getattr(config, name) for name in names)

    assert chosen() == chosen("--model", "nano") == taught
    assert chosen("--model", "tiny") == usual
    assert chosen("--base-url", "http://localhost:8000/v1") == usual  # nano on a server may be another model
    assert chosen("--context-turns", "3", "--feedback-template", "feedback") == ("nano", "feedback", 3, "keep", 384)
    turns = load(TrainConfig, Path(__file__).parents[2] / "configs" / "nano-turns.yaml", [])
    assert turns.data.prompt_template == turns.rollout.feedback_template == "nano"
    assert (turns.rollout.context, turns.rollout.max_completion_length) == ("last", 384)


def test_search_that_stops_at_a_correct_answer_keeps_verdicts_in_progress(module: Path) -> None:
    judge = SlowJudge()
    model = Noticing(judge, 4)
    model.outcome = lambda turn, sample: ("correct", 2.0) if sample else "timeout"
    flags = {"strategy": "parallel", "turns": 9, "parallel": 2}
    code, folder = search(module, model, judge, "--judge.workers", "2", "--stop-when-correct", **flags)
    assert code == 0
    assert len(records(folder, "answer")) == len(records(folder, "verdict")) == 4


def searching(module: Path, *flags: str) -> Search:
    config, _ = parse([str(module), *flags])
    return Search(config, load_module(config), Trajectory(module.parent / "none", ""), Model(lambda *_: ""), None)


def test_candidates_are_not_timed_while_the_model_writes_on_the_same_gpu(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = ["--device", "cuda:0"]
    assert not searching(module, *on_gpu).overlaps
    assert not searching(module, *on_gpu, "--judge-device", "cuda,cuda:1").overlaps
    assert searching(module, "--device", "cpu").overlaps
    assert searching(module, *on_gpu, "--judge.timing", "false").overlaps
    assert searching(module, *on_gpu, "--judge-device", "cuda:1,cuda:2").overlaps
    assert searching(module, *on_gpu, "--base-url", "http://localhost:8000/v1", "--model", "m").overlaps
    monkeypatch.setattr(Search, "overlaps", False)
    judge = PretendJudge()
    counts = []

    class Watched(Model):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            for one in super().answer(requests, poll):
                time.sleep(0.05)
                counts.append(len(judge.judged))
                yield one

    for strategy in ("serial", "parallel"):
        counts.clear()
        judge.judged.clear()
        out = module.parent / strategy
        search(module, Watched(lambda turn, sample: "timeout"), judge, out=out, strategy=strategy, turns=2, parallel=3)
        assert counts == [0, 0, 0, 3, 3, 3]
        assert len(records(out, "verdict")) == 6
    out = module.parent / "tokens"
    search(module, Watched(lambda turn, sample: "timeout"), judge, out=out, tokens=30, parallel=4)
    assert len(records(out, "answer")) == len(records(out, "verdict")) == 2  # written answers are judged


# ---- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "answers"),
    [
        ({"evaluations": 5}, 6),  # the sixth answer is kept but not judged
        ({"tokens": 90}, 5),
        ({"turns": 2, "parallel": 2}, 4),
        ({"stop_at": 1.8, "parallel": 1}, 2),
    ],
)
def test_budgets_end_the_search_and_every_answer_is_kept(module: Path, budget: dict[str, Any], answers: int) -> None:
    model = Model(lambda turn, sample: ("correct", float(turn)))
    code, folder = search(module, model, **{"turns": 20, "parallel": 2, **budget})
    assert code == 0
    assert len(records(folder, "answer")) == answers
    judged = len({record["verdict"]["candidate_hash"] for record in records(folder, "verdict")})
    assert judged <= budget.get("evaluations", 99)
    assert len(records(folder, "verdict")) == min(answers, budget.get("evaluations", 99))
    assert (folder / "best.py").exists()


def test_time_budget_ends_the_search_even_while_the_model_is_writing(module: Path) -> None:
    class Slow(Model):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            yield from super().answer(requests, poll)
            if self.rounds[0] == 2:
                while True:
                    poll()
                    time.sleep(0.01)

    began = time.monotonic()
    code, folder = search(module, Slow(lambda turn, sample: ("correct", 2.0)), turns=9, seconds=0.5)
    assert time.monotonic() - began < 20
    assert code == 0
    assert len(records(folder, "verdict")) == 2


def test_equal_code_is_judged_once(module: Path) -> None:
    class Same(Model):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            for request in requests:
                yield request, Answer(said("correct", 2.0), "stop", 1, 1)

    judge = PretendJudge()
    _, folder = search(module, Same(lambda turn, sample: "correct"), judge, turns=3, parallel=3)
    assert len(judge.judged) == 1
    assert len(records(folder, "verdict")) == 9


# ---- failures --------------------------------------------------------------------------------------------------------


def test_answers_survive_a_failed_server_and_the_search_resumes(module: Path) -> None:
    first = Model(lambda turn, sample: ("correct", float(turn)), ServerFailed("gone"), die_after=3)
    code, folder = search(module, first, turns=3, parallel=2)
    assert code == 75
    assert len(records(folder, "answer")) == len(records(folder, "verdict")) == 3
    assert "# 2 0" in (folder / "best.py").read_text()
    assert "stopped: gone" in (folder / "report.html").read_text()
    second = Model(lambda turn, sample: ("correct", float(turn)))
    second.rounds = {0: 2, 1: 1}
    assert search(module, second, None, "--resume", turns=3, parallel=2)[0] == 0
    assert len(second.asked) == 3  # the missing answers
    straight = Model(lambda turn, sample: ("correct", float(turn)))
    other = module.parent.parent / "other"
    assert search(module, straight, turns=3, parallel=2, out=other)[0] == 0
    found, expected = (
        {(r["turn"], r["sample"]): (r["text"], r["messages"]) for r in records(path, "answer")}
        for path in (folder, other)
    )
    assert found == expected
    assert (folder / "best.py").read_text() == (other / "best.py").read_text()


def test_interrupt_keeps_the_best_so_far(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted(Model):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            for one in super().answer(requests, poll):
                if self.rounds[0] == 3:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.05)
                    poll()
                yield one

    before = signal.getsignal(signal.SIGINT)
    code, folder = search(module, Interrupted(lambda turn, sample: ("correct", float(turn))), turns=9)
    assert code == 75
    assert "# 2 0" in (folder / "best.py").read_text()
    assert "continue with --resume" in capsys.readouterr().err
    assert (folder / "report.html").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_stop_during_a_verdict_keeps_that_verdict(module: Path) -> None:
    started, go_on = threading.Event(), threading.Event()

    class Slow(PretendJudge):
        def evaluate(self, *given: Any) -> Verdict:
            started.set()
            go_on.wait(10)
            return replace(super().evaluate(*given), seeds=(2**127 + 1,))

    class Stopped(Model):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            yield from super().answer(requests, poll)
            started.wait(10)
            threading.Timer(0.1, go_on.set).start()
            raise StopRequested("SIGTERM")

    code, folder = search(module, Stopped(lambda turn, sample: ("correct", 2.0)), Slow(), parallel=2)
    assert code == 75
    assert len(records(folder, "answer")) == 2
    assert len(records(folder, "verdict")) == 1  # the verdict in progress; the other was not begun
    judge = PretendJudge()
    assert search(module, Model(lambda turn, sample: "timeout"), judge, "--resume", turns=1, parallel=2)[0] == 0
    assert len(judge.judged) == 1  # the answer without a verdict
    assert records(folder, "verdict")[0]["verdict"]["seeds"] == [2**127 + 1]


def test_single_failure_of_the_judge_costs_only_one_turn(module: Path) -> None:
    class Flaky(PretendJudge):
        def evaluate(self, *given: Any) -> Verdict:
            verdict = super().evaluate(*given)
            if len(self.judged) == 2:
                raise OSError("no more processes")
            return verdict

    model = Model(lambda turn, sample: ["timeout", "wrong_output", ("correct", 2.0)][turn - 1])
    code, folder = search(module, model, Flaky(), turns=3, feedback_template="nano")
    assert code == 0
    assert outcomes(folder) == ["timeout", "harness_failed", "correct"]
    assert "OSError: no more processes" in records(folder, "verdict")[1]["verdict"]["reason"]
    # The third prompt shows only the first answer, because the second has no verdict.
    assert len(records(folder, "answer")[2]["messages"]) == len(records(folder, "answer")[1]["messages"])


def test_search_whose_judge_always_fails_ends_with_exit_code_3_and_can_be_resumed(
    module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = PretendJudge(overrule="harness_failed")
    code, folder = search(module, Model(lambda turn, sample: "correct"), judge)
    assert code == 3
    assert "the judge reached no verdict on any of 1 answers" in capsys.readouterr().err
    assert len(records(folder, "answer")) == 1
    again = Model(lambda turn, sample: "correct")
    assert search(module, again, None, "--resume", turns=1)[0] == 0  # the same answer, judged now
    assert again.asked == []


def test_prompt_after_one_that_was_too_long_shows_fewer_answers(module: Path) -> None:
    class Small(Model):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            for request in requests:
                if len(request.messages) > 5:
                    yield request, Answer("", "refused", problem="the prompt is too long")
                else:
                    yield from super().answer([request], poll)

    model = Small(lambda turn, sample: "timeout")
    _, folder = search(module, model, turns=7, context_turns=4)
    lengths = [len(record["messages"]) for record in records(folder, "answer")]
    assert lengths == [1, 3, 5, 7, 7, 5, 5]
    assert [record["refused"] for record in records(folder, "answer")] == [n > 5 for n in lengths]


def test_mistakes_give_one_sentence(module: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def mistake(*arguments: str, **injected: Any) -> str:
        capsys.readouterr()
        assert main(list(arguments), **injected) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error.removeprefix("error: ").strip()

    given = {"make_model": Model(lambda turn, sample: "timeout"), "make_judge": PretendJudge()}
    out = ["--output", str(tmp_path / "o"), "--device", "cpu"]
    assert mistake(str(module), "--trun", "3") == "unknown flag --trun; did you mean --turns?"
    assert mistake(str(module), "--turns", "0").startswith("--turns: input should be greater than or equal to 1")
    assert mistake(str(module), "--strategy", "tree").startswith("--strategy: input should be 'serial'")
    assert mistake(str(module), "--judge.chekcs", "3").startswith("unknown flag --judge.chekcs")
    assert mistake(str(module), "--base-url", "localhost").startswith("base_url must look like")
    assert "nowhere.py" in mistake(str(tmp_path / "nowhere.py"), *out, **given)
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert mistake(str(tmp_path / "empty.py"), *out, **given)
    assert mistake(str(module), *out, "--feedback-template", "none", **given).startswith("feedback template none")
    assert main([str(module), *out, "--turns", "1"], **given) == 1
    assert "already holds a search: pass --resume" in mistake(str(module), *out, **given)
    (tmp_path / "2.py").write_text(module.read_text().replace("* 1", "* 2"))
    assert "for another module" in mistake(str(tmp_path / "2.py"), *out, "--resume", **given)

    def unsafe(**arguments: Any) -> Any:
        raise HarnessFailed("the judge cannot start on this machine: no sandbox")

    assert main([str(module), "--output", str(tmp_path / "p")], make_model=given["make_model"], make_judge=unsafe) == 3


def test_verdict_whose_line_was_cut_short_is_made_again(module: Path) -> None:
    _, folder = search(module, Model(lambda turn, sample: "timeout"), turns=2)
    path = folder / "trajectory.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    judge = PretendJudge()
    search(module, Model(lambda turn, sample: "timeout"), judge, "--resume", turns=2)
    assert len(judge.judged) == 1
    assert len(path.read_bytes().splitlines()) == len(whole.splitlines())


# ---- the real judge --------------------------------------------------------------------------------------------------

KERNEL = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0) * {scale}
"""


def test_search_with_a_server_and_the_real_judge_on_the_cpu(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong answer, its feedback, and a right answer. The server refuses one request in between."""
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.01)

    def behave(number: int, body: dict[str, Any]) -> Reply:
        if number == 1:
            return refusal(503, "busy")
        wrong = len(body["messages"]) == 2
        if not wrong:
            assert "its results are wrong" in body["messages"][-1]["content"]
            assert "First wrong element" in body["messages"][-1]["content"]
        return completion(
            f"<thinking>\n</thinking>\n<answer>\n```python\n{KERNEL.format(scale=2 if wrong else 1)}```\n</answer>"
        )

    folder = module.parent.parent / "out"
    with chat_server(behave) as server:
        code = main(
            [
                *(str(module), "--model", "m", "--base-url", server.url, "--output", str(folder), "--device", "cpu"),
                *("--backend", "torch", "--turns", "3", "--stop-when-correct", "--judge.workers", "1"),
                *("--judge.hidden-shapes", "false"),
            ]
        )
    assert code == 0
    assert outcomes(folder) == ["wrong_output", "correct"]
    assert (folder / "best.py").read_text() == KERNEL.format(scale=1)
    assert json.loads((folder / "config.json").read_text())["strategy"] == "serial"
    assert "its time was not measured" in (folder / "report.html").read_text() or (
        records(folder, "verdict")[1]["verdict"]["speedup"] is not None
    )


def test_search_with_an_untrained_local_model_finds_no_kernel(module: Path) -> None:
    folder = module.parent.parent / "out"
    code = main(
        [
            *(str(module), "--model", "tiny", "--output", str(folder), "--device", "cpu", "--max-new-tokens", "8"),
            *("--turns", "2", "--parallel", "2", "--num-threads", "1", "--prompt-template", "nano"),
            *("--feedback-template", "nano", "--judge.workers", "1"),
        ]
    )
    assert code == 1
    assert outcomes(folder) == ["format_error"] * 4
    assert [len(record["messages"]) for record in records(folder, "answer")] == [1, 1, 3, 3]
