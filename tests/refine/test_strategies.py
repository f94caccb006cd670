"""Strategies at equal budgets: what each search gets, the curves, and resuming."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_coder.evaluate.answers import Answer, Poll
from kernel_coder.evaluate.errors import EXIT_STOPPED, ServerFailed
from kernel_coder.judge import Outcome
from kernel_coder.refine.compare import Progress, main, parse_compare, points, progress_of, summarise
from kernel_coder.refine.search import BudgetSpent, Question
from kernel_coder.refine.shared_judge import SharedJudge
from kernel_coder.refine.shared_model import SharedModel
from kernel_coder.tasks import Task
from pretend import PretendJudge, write_tasks
from test_evolve import Climbing, HonestJudge

EVERY = "serial,parallel,turns,evolve"


def run(tmp_path: Path, *flags: str, model: Any = None, judge: Any = None) -> tuple[int, Path]:
    tasks, out = write_tasks(tmp_path / "tasks", 2), tmp_path / "out"
    given = ["--strategy", EVERY, "--tasks", str(tasks), "--output", str(out), "--device", "cpu", *flags]
    return main(given, make_model=model or Climbing(), make_judge=judge or HonestJudge()), out


def test_every_strategy_has_the_same_budget_on_every_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = HonestJudge()
    code, out = run(tmp_path, "--evaluations", "12", "--seeds", "0,1", judge=judge)
    assert code == 0
    summary = json.loads((out / "summary.json").read_text())
    for one in summary["strategies"].values():
        assert (one["tasks"], one["searches"], one["candidates"]) == (2, 4, 48)
        assert [row["evaluations"] for row in one["curve"]] == [1, 2, 4, 8, 12]
        assert one["curve"][0]["solved"] == 1.0
    speed = {name: one["curve"][-1]["speedup"] for name, one in summary["strategies"].items()}
    assert speed["parallel"] == 1.0  # no answer sees another, so none is faster
    assert min(speed["serial"], speed["turns"], speed["evolve"]) > 1.2
    assert (out / "evolve" / "seed-1" / "001-tasks_2_scale" / "trajectory.jsonl").exists()
    assert "evolve, speedup" in capsys.readouterr().out
    assert (out / "report.html").read_text().count("<polyline") == 8
    assert run(tmp_path, "--evaluations", "12")[0] == 2  # the folder already holds a comparison
    judged = len(judge.judged)
    assert run(tmp_path, "--evaluations", "12", "--seeds", "0,1", "--resume", judge=judge)[0] == 0
    assert len(judge.judged) == judged
    assert json.loads((out / "summary.json").read_text()) == summary


def test_curves_are_means_over_tasks_and_an_unsolved_task_has_speedup_1() -> None:
    config, _ = parse_compare(["--strategy", "serial", "--evaluations", "4"])
    searches = [
        Progress("a", 0, (0.0, 2.0, 2.0, 8.0), (0.0, 0.0, 2.0, 2.0, 8.0), 5, 40, True),
        Progress("b", 0, (0.0, 0.0), (0.0, 0.0), 2, 20, False),  # ended early, without a correct answer
    ]
    summary = summarise(config, {"serial": searches})
    curve = summary["strategies"]["serial"]["curve"]
    assert [row["solved"] for row in curve] == [0.0, 0.5, 0.5]
    assert [row["speedup"] for row in curve] == pytest.approx([1.0, math.sqrt(2), math.sqrt(8)])
    assert (curve[-1]["solved_low"], curve[-1]["solved_high"]) == (0.0, 1.0)
    by_answer = summary["strategies"]["serial"]["answers_curve"]
    assert [row["speedup"] for row in by_answer] == pytest.approx([1.0, 1.0, math.sqrt(2)])
    assert points(1) == [1]


def test_repeated_and_unusable_answers_count_as_answers_but_not_as_candidates() -> None:
    def attempt(code: str | None, speedup: float | None) -> SimpleNamespace:
        verdict = None if speedup is None else SimpleNamespace(correct=speedup > 0, speedup=speedup)
        return SimpleNamespace(code=code, verdict=verdict, is_judged=speedup is not None)

    attempts = [("a", 0.0), ("a", 0.0), (None, None), ("b", 2.0), ("c", None), ("d", 3.0)]
    trajectory = SimpleNamespace(attempts=dict(enumerate(attempt(*one) for one in attempts)), tokens=60)
    found = progress_of(trajectory, "task", 0, finished=False)
    assert found.best == (0.0, 2.0, 3.0)
    assert found.by_answer == (0.0, 0.0, 0.0, 2.0)  # the verdict on "c" is missing
    assert (found.after_answers(3), found.after_answers(99), found.answers) == (0.0, 2.0, 6)


def test_without_times_there_is_no_speedup(tmp_path: Path) -> None:
    class Untimed(Climbing):
        def __init__(self) -> None:
            super().__init__("correct")

    _, out = run(tmp_path, "--evaluations", "3", "--stop-when-correct", model=Untimed(), judge=PretendJudge())
    summary = json.loads((out / "summary.json").read_text())
    assert {row["speedup"] for one in summary["strategies"].values() for row in one["curve"]} == {None}
    assert "speedup" not in (out / "table.md").read_text()


def test_mistakes_in_evaluate_with_a_strategy_give_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def mistake(*flags: str) -> str:
        assert main(list(flags)) == 2
        return capsys.readouterr().err.strip().removeprefix("error: ")

    assert mistake("--strategy", "tree").startswith("--strategy must name some of serial, parallel, turns, evolve")
    assert mistake("--strategy=evolve", "--novelty", "2").startswith("--novelty: input should be less than")
    assert mistake("--strategy", "evolve", "--seeds", "a") == "--seeds must be numbers, as in 0,1,2; got a"
    assert mistake("--strategy", "evolve", "--at-once", "0") == "--at-once must be at least 1; got 0"
    assert mistake("--strategy", "evolve", "--evaluations", "0") == "--evaluations must be at least 1; got 0"
    assert "nowhere" in mistake("--strategy", "evolve", "--tasks", str(tmp_path / "nowhere"), "--device", "cpu")


# ---- several searches at the same time -------------------------------------------------------------------------------


class Batches(Climbing):
    """Records the size of each batch, and fails if two threads ask at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.inside = threading.Lock()

    def answer(self, requests: Sequence[Any], poll: Poll) -> Iterator[tuple[Any, Answer]]:
        assert self.inside.acquire(blocking=False)
        try:
            self.sizes.append(len(requests))
            yield from super().answer(requests, poll)
        finally:
            self.inside.release()


def test_concurrent_searches_share_batches_and_give_the_same_results(tmp_path: Path) -> None:
    alone, together = Batches(), Batches()
    flags = ["--evaluations", "12", "--seeds", "0,1"]
    _, first = run(tmp_path / "alone", *flags, model=alone)
    _, second = run(tmp_path / "together", *flags, "--at-once", "16", model=together)
    one, two = (json.loads((out / "summary.json").read_text()) for out in (first, second))
    assert one["strategies"] == two["strategies"]
    assert max(alone.sizes) == 8
    assert max(together.sizes) > 32
    assert len(together.sizes) < len(alone.sizes) / 2


def test_remember_judges_equal_code_once_over_all_searches_with_the_same_results(tmp_path: Path) -> None:
    class Repeating(Climbing):
        """Gives all searches for a task the same code at the same turn and sample."""

        def answer(self, requests: Sequence[Any], poll: Poll) -> Iterator[tuple[Any, Answer]]:
            for request, answer in super().answer(requests, poll):
                place = f"# {request.turn}/{request.sample}"
                yield request, replace(answer, text=re.sub(r"# \d+$", place, answer.text, flags=re.MULTILINE))

    class Noting(HonestJudge):
        def evaluate(self, task: Any, code: str, backend: str) -> Any:
            asked.append((task.id, code))
            return super().evaluate(task, code, backend)

    asked: list[tuple[str, str]] = []
    flags = ["--evaluations", "12", "--seeds", "0,1", "--at-once", "16"]
    summaries, counts = [], []
    for name, more in (("plain", []), ("shared", ["--remember"])):
        _, out = run(tmp_path / name, *flags, *more, model=Repeating(), judge=Noting())
        summaries.append(json.loads((out / "summary.json").read_text())["strategies"])
        counts.append((len(asked), len(set(asked))))
        asked.clear()
    assert summaries[0] == summaries[1]
    assert counts[0][0] > 2 * counts[0][1]
    assert counts[1] == (counts[0][1], counts[0][1])
    for path in (out / "parallel").rglob("trajectory.jsonl"):
        path.unlink()
    assert run(tmp_path / "shared", *flags, "--remember", "--resume", model=Repeating(), judge=Noting())[0] == 0
    assert json.loads((out / "summary.json").read_text())["strategies"] == summaries[1]
    assert len(asked) < counts[1][0]


def test_shared_judge_remembers_verdicts_but_no_failures() -> None:
    class Failing(PretendJudge):
        def evaluate(self, task: Any, code: str, backend: str | None = None) -> Any:
            if not self.judged:
                self.judged.append("failed")
                raise RuntimeError("the device is gone")
            return super().evaluate(task, code, backend)

    task, inner = Task(id="a", source="test", reference="class Model: ..."), Failing()
    judge = SharedJudge(inner)
    with pytest.raises(RuntimeError, match="the device is gone"):
        judge.evaluate(task, "wrong")
    verdict = judge.evaluate(task, "wrong")
    assert judge.evaluate(task, "wrong") is verdict
    assert len(inner.judged) == 2
    lost = replace(verdict, outcome=Outcome.HARNESS_FAILED, reason="the judge failed", compiled=False)
    other = SharedJudge(Failing())
    other.remember(task, [("wrong", lost), ("right", verdict)])
    assert other.evaluate(task, "right") is verdict
    with pytest.raises(RuntimeError):
        other.evaluate(task, "wrong")


def test_failed_search_ends_the_others_and_their_answers_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Batches):
        def answer(self, requests: Sequence[Any], poll: Poll) -> Iterator[tuple[Any, Answer]]:
            if len(self.sizes) == 3:
                raise ServerFailed("the model is gone")
            yield from super().answer(requests, poll)

    flags = ["--evaluations", "12", "--at-once", "4"]
    code, out = run(tmp_path, *flags, model=Failing())
    assert code == EXIT_STOPPED
    assert "stopped by the model is gone" in capsys.readouterr().err
    assert any(file.read_text().count("\n") > 1 for file in out.rglob("trajectory.jsonl"))
    assert run(tmp_path, *flags, "--resume")[0] == 0


def test_stopped_comparison_reports_up_to_the_budget_that_all_searches_reached(tmp_path: Path) -> None:
    class Failing(Batches):
        def answer(self, requests: Sequence[Any], poll: Poll) -> Iterator[tuple[Any, Answer]]:
            if len(self.sizes) == 3:
                raise ServerFailed("the model is gone")
            yield from super().answer(requests, poll)

    flags = ["--evaluations", "64", "--parallel", "8", "--at-once", "8"]
    code, out = run(tmp_path, *flags, model=Failing())
    assert code == EXIT_STOPPED
    strategies = json.loads((out / "summary.json").read_text())["strategies"]
    assert strategies["parallel"]["unfinished"] == 2
    assert 1 <= len(strategies["parallel"]["curve"]) < 7
    assert len(strategies["parallel"]["curve"]) == len(strategies["evolve"]["curve"])
    assert "| parallel, speedup |" in (out / "table.md").read_text()
    assert "2 of 2 searches with parallel are not finished." in (out / "report.html").read_text()
    assert run(tmp_path, *flags, "--resume")[0] == 0
    finished = json.loads((out / "summary.json").read_text())["strategies"]
    assert "not finished" not in (out / "report.html").read_text()
    assert [len(one["curve"]) for one in finished.values()] == [7, 7, 7, 7]
    assert all(one["unfinished"] == 0 for one in finished.values())


def test_strategy_without_a_candidate_in_each_search_has_no_curve() -> None:
    config, _ = parse_compare(["--strategy", "serial", "--evaluations", "8"])
    searches = [
        Progress("a", 0, (1.0, 2.0, 2.0, 8.0, 8.0), (1.0,) * 5, 5, 40, True, finished=False),
        Progress("b", 0, (0.0, 1.0, 1.0), (0.0, 1.0, 1.0), 3, 20, True, finished=False),
    ]
    curve = summarise(config, {"serial": searches})["strategies"]["serial"]["curve"]
    assert [row["evaluations"] for row in curve] == [1, 2]
    searches[1] = Progress("b", 0, (), (), 0, 0, False, finished=False)
    assert summarise(config, {"serial": searches})["strategies"] == {}


def test_search_with_no_time_left_does_not_wait_for_a_batch(tmp_path: Path) -> None:
    shared, ended = SharedModel(Batches(), lambda: None), []

    def spent() -> None:
        raise BudgetSpent("the budget of 1 seconds is spent")

    def hasty() -> None:
        with shared.search(), pytest.raises(BudgetSpent):
            ended.append(list(shared.answer([object()], spent)))

    with shared.search():  # a second search that never asks: no batch can begin
        thread = threading.Thread(target=hasty)
        thread.start()
        thread.join(60)
    assert not thread.is_alive()
    assert not ended


def test_model_answers_some_searches_while_a_judge_on_another_gpu_has_the_others() -> None:
    """One search waits for its judge. The other search still gets its answer if the judge uses another GPU."""

    def answered(*, overlaps: bool) -> bool:
        shared, ended = SharedModel(Batches(), lambda: None, overlaps=overlaps), []

        def poll() -> None:
            if judged.wait(0.5):
                raise BudgetSpent("the other search is over")

        def quick() -> None:
            with shared.search(), suppress(BudgetSpent):
                ended.extend(shared.answer([asked], poll))

        judged, thread = threading.Event(), threading.Thread(target=quick)
        asked = Question(1, 0, ({"role": "user", "content": "Write it."},), 0)
        with shared.search():
            thread.start()
            thread.join(5 if overlaps else 1)
            judged.set()
            thread.join(60)
        return bool(ended)

    assert answered(overlaps=True)
    assert not answered(overlaps=False)


def test_judge_flags_select_the_device_or_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_coder.evaluate.devices.resolve_device", lambda name, flag="": name)
    for flags, place in (
        (["--judge-device", "cuda:1,cuda:2"], "cuda:1,cuda:2"),
        (["--judge-url", "http://127.0.0.1:8400"], "http://127.0.0.1:8400"),
    ):
        judge = HonestJudge()
        given = [*flags, "--evaluations", "4", "--at-once", "8", "--device", "cuda:0"]
        assert run(tmp_path / flags[0], *given, judge=judge)[0] == 0
        assert judge.arguments["device"] == place


def test_each_search_opens_its_own_client_of_a_server(tmp_path: Path) -> None:
    opened: list[Climbing] = []

    def open_client(config: Any) -> Climbing:
        opened.append(Climbing())
        return opened[-1]

    tasks = write_tasks(tmp_path / "tasks", 2)
    given = ["--strategy", "parallel", "--tasks", str(tasks), "--output", str(tmp_path / "out"), "--device", "cpu"]
    given += ["--evaluations", "4", "--at-once", "2", "--base-url", "http://127.0.0.1:9/v1", "--model", "some"]
    assert main(given, make_model=open_client, make_judge=HonestJudge()) == 0
    assert len(opened) == 2
