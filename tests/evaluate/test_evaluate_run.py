"""A whole evaluation with a fake judge and a fake model. A run that is killed at any point can be resumed."""

from __future__ import annotations

import functools
import html
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, completion
from kernel_coder.evaluate import run as run_module
from kernel_coder.evaluate.answers import Answer, Poll, Request
from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.errors import HarnessFailed, UsageError
from kernel_coder.evaluate.report import Results
from kernel_coder.evaluate.run import evaluate, select_tasks
from kernel_coder.evaluate.store import LOCK
from kernel_coder.judge import Verdict
from kernel_coder.judge.admission_list import KnownAdmission, known_admission, listing
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task
from pretend import PretendJudge, PretendModel, said, write_tasks

FILES = {"config.yaml", "samples.jsonl", "verdicts.jsonl", "summary.json", "table.md", "report.html", LOCK}


def text_of(request: Request) -> str:
    """Task 1: correct, twice as fast, or half; task 2: wrong; task 3: no code, or a failure of the harness."""
    answers = {
        "1": [said("correct", 2.0), said("correct", 0.5)],
        "2": [said("wrong_output"), said("compile_error")],
        "3": [said("nothing"), said("harness_failed")],
    }
    return answers[request.task.id.rpartition("/")[2][0]][request.sample % 2]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("fixed") / "scales")


def config(folder: Path, output: Path, **changes: Any) -> EvaluateConfig:
    values = {"model": "m", "tasks": str(folder), "output": str(output), "samples": 2, "device": "cpu"}
    values |= {"backend": "torch", **changes}
    return EvaluateConfig.model_validate(values)


def run(
    chosen: EvaluateConfig, judge: PretendJudge | None = None, model: PretendModel | None = None, resume: bool = False
) -> Results:
    return evaluate(
        chosen,
        resume=resume,
        make_judge=judge or PretendJudge(),
        make_model=model or PretendModel(text_of),
        log=io.StringIO(),
    )


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


# Seeds, families, and the devices of the judge


def test_each_of_several_seeds_has_its_samples_and_a_row_in_the_table(tasks: Path, tmp_path: Path) -> None:
    alone = PretendModel(text_of)
    run(config(tasks, tmp_path / "alone", seed=7), model=alone)
    found = run(config(tasks, tmp_path / "several", seeds=(5, 7, 9), pass_at=(1, 6)))
    assert found.config.answers == 6
    assert {len(found.of_task(task)) for task in found.tasks} == {6}
    record, table = summary(tmp_path / "several"), (tmp_path / "several/table.md").read_text()
    assert (record["seeds"], record["samples_per_task"]) == ([5, 7, 9], 6)
    assert list(record["by_seed"]) == ["seed 5", "seed 7", "seed 9"]
    rates = [one["correct"]["value"] for one in record["by_seed"].values()]
    assert record["metrics"]["correct"]["of"] == sum(one["correct"]["of"] for one in record["by_seed"].values())
    assert min(rates) <= record["metrics"]["correct"]["value"] <= max(rates)
    assert set(record["metrics"]["pass_at_k"]["correct"]) == {"1", "6"}
    assert "2 samples each with each of the seeds 5, 7, 9" in table
    assert "| seed 7 | 3 |" in table
    # A seed gives the same samples, with or without other seeds in the run.
    seeds = {(line["task"], line["seed"]) for line in records(tmp_path / "alone/samples.jsonl")}
    assert seeds < {(line["task"], line["seed"]) for line in records(tmp_path / "several/samples.jsonl")}


def test_interval_of_the_mean_over_seeds_is_over_tasks(tasks: Path, tmp_path: Path) -> None:
    """Only the task decides the outcome here, so more seeds must not narrow the interval."""

    def by_task(request: Request) -> str:
        return said("correct" if request.task.id.rpartition("/")[2][0] == "1" else "wrong_output")

    def interval(name: str, **changes: Any) -> list[float]:
        run(config(tasks, tmp_path / name, **changes), model=PretendModel(by_task))
        found = summary(tmp_path / name)["metrics"]["correct"]
        return [found["value"], found["low"], found["high"]]

    assert interval("one") == interval("three", seeds=(1, 2, 3))


def test_families_can_be_selected_and_excluded(tmp_path: Path) -> None:
    chosen = config(
        Path("packaged:heldout"), tmp_path / "a", families=("bmm", "loss"), max_level=1, limit=9, backend="triton"
    )
    assert {task.metadata["family"] for task in select_tasks(chosen)} == {"bmm", "loss"}
    others = config(
        Path("packaged:heldout"), tmp_path / "b", exclude_families=("bmm", "loss"), limit=30, backend="triton"
    )
    assert not {task.metadata["family"] for task in select_tasks(others)} & {"bmm", "loss"}
    with pytest.raises(UsageError, match="--families and --exclude-families both name bmm"):
        run(config(Path("packaged:heldout"), tmp_path / "c", families=("bmm",), exclude_families=("bmm",)))


def test_equal_code_for_one_task_is_judged_once_with_remember(tasks: Path, tmp_path: Path) -> None:
    def text(request: Request) -> str:
        return said("correct", 2.0) if request.sample % 2 else said("wrong_output")

    judge, again = PretendJudge(), PretendJudge()
    wanted = run(config(tasks, tmp_path / "all", samples=6), model=PretendModel(text))
    found = run(config(tasks, tmp_path / "once", samples=6, remember=True), judge, PretendModel(text))
    assert len(judge.judged) == 6
    assert found.verdicts.keys() == wanted.verdicts.keys()
    assert found.summary == wanted.summary
    more = config(tasks, tmp_path / "once", samples=8, remember=True)
    assert len(run(more, again, PretendModel(text), resume=True).verdicts) == 24
    assert again.judged == []


def test_judging_starts_before_the_last_answer_if_the_judge_has_other_gpus(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_coder.evaluate.devices.resolve_device", lambda name, flag="": name)
    judge = PretendJudge()
    judged_before_the_last: list[int] = []

    class Model(PretendModel):
        def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
            for number, pair in enumerate(super().answer(requests, poll)):
                yield pair
                while number == 2 and not judge.judged:
                    time.sleep(0.01)
            judged_before_the_last.append(len(judge.judged))

    elsewhere = config(tasks, tmp_path / "elsewhere", device="cuda", judge_device="cuda:1,cuda:2")
    found = run(elsewhere, judge, Model(text_of))
    assert judged_before_the_last[0] > 0
    assert judge.arguments["device"] == "cuda:1,cuda:2"
    assert len(found.verdicts) == 6
    same = config(tasks, tmp_path / "same", device="cuda:1", judge_device="cuda:1,cuda:2")
    assert not same.judged_elsewhere
    assert not config(tasks, tmp_path, device="cuda", judge_device="cuda:0").judged_elsewhere
    run(elsewhere.model_copy(update={"judge_device": "cuda:3"}), resume=True)  # the judge's GPU does not change answers


# The results


def test_folder_holds_all_answers_verdicts_and_metrics(tasks: Path, tmp_path: Path) -> None:
    judge = PretendJudge()
    run(config(tasks, tmp_path), judge)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    samples, verdicts = records(tmp_path / "samples.jsonl"), records(tmp_path / "verdicts.jsonl")
    assert len(samples) == len(verdicts) == 6
    assert samples[-1]["messages"][0]["content"]
    found = summary(tmp_path)
    metrics = found["metrics"]
    assert metrics["harness_failed"] == 1
    assert metrics["correct"] == {"value": 0.4, "low": 0.0, "high": 1.0, "of": 5}
    assert metrics["compiled"]["value"] == 0.6
    assert [metrics["fast_p"]["eager"][p]["value"] for p in ("0", "0.5", "1", "2")] == [0.4, 0.2, 0.2, 0.0]
    assert metrics["geometric_mean"]["eager"]["correct"]["value"] == 1.0
    assert metrics["pass_at_k"]["correct"]["1"]["value"] == pytest.approx(1 / 3)
    assert found["by_task"][0]["best_speedup"] == {"eager": 2.0}
    assert found["answers"]["without_code"] == 1
    assert (judge.open, len(judge.judged)) == (0, 5)


def test_an_answer_without_code_never_reaches_the_judge(tasks: Path, tmp_path: Path) -> None:
    judge = PretendJudge()
    run(config(tasks, tmp_path), judge, PretendModel(lambda request: said("nothing")))
    assert judge.arguments == {}
    verdict = records(tmp_path / "verdicts.jsonl")[0]["verdict"]
    assert (verdict["outcome"], verdict["reason"]) == ("format_error", "the answer holds no code block")
    assert "ModelNew" in verdict["feedback"]


def test_judge_gets_device_backend_and_settings_from_the_config(tasks: Path, tmp_path: Path) -> None:
    judge = PretendJudge()
    run(config(tasks, tmp_path, backend="cpp", judge={"checks": 2}), judge)
    assert (judge.arguments["device"], judge.arguments["backend"]) == ("cpu", "cpp")
    assert judge.arguments["config"].checks == 2


def test_the_compile_baseline_has_its_own_numbers(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path, judge={"compile_baseline": True}))
    fast = summary(tmp_path)["metrics"]["fast_p"]
    assert (fast["eager"]["0.8"]["value"], fast["compile"]["0.8"]["value"]) == (0.2, 0.2)
    assert (fast["eager"]["1"]["value"], fast["compile"]["1"]["value"]) == (0.2, 0.0)
    assert "by torch.compile" in (tmp_path / "table.md").read_text()


def test_every_sample_has_its_own_seed_derived_from_the_seed_of_the_run(tasks: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(config(tasks, tmp_path / name, seed=seed))
    seeds = {
        name: {(r["task"], r["sample"]): r["seed"] for r in records(tmp_path / name / "samples.jsonl")}
        for name in "abc"
    }
    assert len(set(seeds["a"].values())) == 6
    assert seeds["a"] == seeds["b"] != seeds["c"]


def test_run_fails_if_the_harness_fails_on_every_answer(tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessFailed, match="no verdict on any of 6 answers: an example of harness_failed"):
        run(config(tasks, tmp_path), PretendJudge(overrule="harness_failed"), PretendModel(lambda r: said("correct")))
    assert summary(tmp_path)["metrics"]["correct"]["value"] is None
    assert "judges them again" in (tmp_path / "table.md").read_text()


class Watchful(PretendModel):
    """Records the number of verdicts before each answer. With `waits`, the second answer waits for a verdict."""

    def __init__(self, judge: PretendJudge, waits: bool) -> None:
        super().__init__(text_of)
        self.judge, self.waits = judge, waits
        self.seen: list[int] = []

    def answer(self, requests: Sequence[Request], poll: Poll) -> Iterator[tuple[Request, Answer]]:
        for pair in super().answer(requests, poll):
            deadline = time.monotonic() + 20
            while self.waits and self.seen and not self.judge.judged and time.monotonic() < deadline:
                time.sleep(0.01)
            self.seen.append(len(self.judge.judged))
            yield pair


def test_answers_of_a_server_are_judged_before_the_last_one_arrives(tasks: Path, tmp_path: Path) -> None:
    judge = PretendJudge()
    model = Watchful(judge, waits=True)
    run(config(tasks, tmp_path, base_url="http://localhost/v1"), judge, model)
    assert model.seen[1] >= 1


def test_local_model_gives_all_answers_before_judging_starts(tasks: Path, tmp_path: Path) -> None:
    judge = PretendJudge()
    model = Watchful(judge, waits=False)
    run(config(tasks, tmp_path), judge, model)
    assert model.seen == [0] * 6


@pytest.mark.parametrize(("workers", "order"), [(1, "111222333"), (4, "121212333"), (6, "123123123")])
def test_answers_of_a_local_model_are_judged_by_up_to_two_workers_per_task(
    workers: int, order: str, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    class Noting(ThreadPoolExecutor):
        def submit(self, evaluate: Any, task: Task, *arguments: Any) -> Any:  # type: ignore[override]
            begun.append(task.id.rpartition("/")[2][0])
            return super().submit(evaluate, task, *arguments)

    monkeypatch.setattr(run_module, "ThreadPoolExecutor", Noting)
    model = PretendModel(lambda request: said("correct", 1.0 + request.sample))
    run(config(tasks, tmp_path, samples=3, judge={"workers": workers}), model=model)
    assert "".join(begun) == order


@pytest.mark.parametrize("base_url", [None, "http://localhost/v1"])
def test_verdicts_in_progress_are_kept_when_a_run_is_stopped(base_url: str | None, tasks: Path, tmp_path: Path) -> None:
    class Slow(PretendJudge):
        def verdict(self, task: Task, code: str) -> Verdict:
            time.sleep(0.5)
            return super().verdict(task, code)

    def stop() -> None:
        if len(judge.judged) >= 2:
            raise KeyboardInterrupt

    judge = Slow()
    chosen = config(tasks, tmp_path, base_url=base_url, judge={"workers": 2})
    model = PretendModel(lambda request: said("correct", 1.0 + request.sample))
    with pytest.raises(KeyboardInterrupt):
        evaluate(chosen, make_judge=judge, make_model=model, poll=stop, log=io.StringIO())
    kept = [record["verdict"]["outcome"] for record in records(tmp_path / "verdicts.jsonl")]
    assert kept == ["correct"] * 2  # and no verdict for candidates that waited for a worker
    assert len(judge.judged) == 2
    assert judge.open == 0


# Selection


def test_problems_are_chosen_by_number_and_limited(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path / "a", problems="2-3"))
    assert [row["task"].rpartition("/")[2] for row in summary(tmp_path / "a")["by_task"]] == ["2_scale", "3_scale"]
    run(config(tasks, tmp_path / "b", problems="2-3", limit=1))
    assert [row["task"].rpartition("/")[2] for row in summary(tmp_path / "b")["by_task"]] == ["2_scale"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tasks": "/no/such/folder"}, "--tasks names no file or folder: /no/such/folder"),
        ({"problems": "7"}, "there is no problem 7; .* has 3 problems, numbered 1 to 3"),
        ({"tasks": "kernelbench:level9"}, "kernelbench:level9 names no level of KernelBench"),
        ({"tasks": "kernelbench:level1", "kernelbench_dir": "/no/copy"}, "/no/copy is not a copy of KernelBench"),
        ({"prompt_template": "no_template"}, "prompt template no_template is neither"),
        ({"backend": "cpp", "one_shot": True}, "the one-shot example is written in Triton"),
    ],
    ids=["tasks", "problem", "level", "copy", "template", "example"],
)
def test_unavailable_tasks_problems_and_templates_are_refused(
    changes: dict[str, Any], sentence: str, tasks: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        run(config(tasks, tmp_path / "out", **changes))


def test_empty_folder_of_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match=r"none holds no \.py"):
        run(config(tmp_path / "none", tmp_path / "out"))


@pytest.fixture
def refused(tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake admission list that refuses the second task, and the third task with a different text."""
    path = tmp_path / "list.json"
    known = [
        KnownAdmission("level1", name, sha256_text(text), admitted, reason, "NVIDIA H200", "71bba18")
        for name, text, admitted, reason in (
            ("1_scale", (tasks / "1_scale.py").read_text(), True, ""),
            ("2_scale", (tasks / "2_scale.py").read_text(), False, "the reference itself does not pass"),
            ("3_scale", "an older text", False, "too large"),
        )
    ]
    path.write_text(listing(known))
    monkeypatch.setattr(run_module, "known_admission", functools.partial(known_admission, path=path))
    return path


def names_of(results: Results) -> list[str]:
    return [row["task"].rpartition("/")[2] for row in summary(results.folder)["by_task"]]


@pytest.mark.usefixtures("refused")
def test_task_refused_by_the_list_is_left_out_and_named_in_log_table_and_page(tasks: Path, tmp_path: Path) -> None:
    log, judge = io.StringIO(), PretendJudge()
    chosen = config(tasks, tmp_path / "out", turns=2)
    results = evaluate(chosen, make_judge=judge, make_model=PretendModel(text_of), log=log)
    said_so = "is left out: level1/2_scale is not admitted (NVIDIA H200, 71bba18): the reference itself does not pass"
    assert names_of(results) == ["1_scale", "3_scale"]
    assert not [task for task in judge.judged if "2_scale" in task]
    for text in (log.getvalue(), (results.folder / "table.md").read_text(), html.unescape(page_of(results))):
        assert text.count(said_so) == 1
    (entry,) = summary(results.folder)["refused_tasks"]
    assert (entry["name"], entry["left_out"], entry["reason"]) == (
        "2_scale",
        True,
        "the reference itself does not pass",
    )


def page_of(results: Results) -> str:
    return (results.folder / "report.html").read_text()


@pytest.mark.usefixtures("refused")
def test_refused_task_can_be_kept_and_is_still_named(tasks: Path, tmp_path: Path) -> None:
    results = run(config(tasks, tmp_path / "out", refused_tasks="keep"))
    assert names_of(results) == ["1_scale", "2_scale", "3_scale"]
    assert not summary(results.folder)["refused_tasks"][0]["left_out"]
    assert "2_scale is evaluated anyway: level1/2_scale is not admitted" in (results.folder / "table.md").read_text()
    left = run(config(tasks, tmp_path / "out"), resume=True)
    assert names_of(left) == ["1_scale", "3_scale"]


@pytest.mark.usefixtures("refused")
def test_admission_list_is_ignored_for_another_precision(tasks: Path, tmp_path: Path) -> None:
    results = run(config(tasks, tmp_path / "out", precision="bf16"))
    assert names_of(results) == ["1_scale", "2_scale", "3_scale"]
    assert summary(results.folder)["refused_tasks"] == []


@pytest.mark.usefixtures("refused")
def test_error_names_the_remedy_if_all_tasks_are_refused(tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no task is left: .*2_scale is not admitted .*--refused-tasks keep"):
        run(config(tasks, tmp_path / "out", problems="2"))


# Resuming


def untimely(results: Results) -> dict[str, Any]:
    found = summary(results.folder)
    return {name: found[name] for name in ("metrics", "by_task", "answers")}


@pytest.mark.parametrize("answers", [0, 1, 5, None])
@pytest.mark.parametrize("verdicts", [0, 1, 4, None])
def test_run_killed_at_any_point_resumes_and_repeats_no_answer(
    answers: int | None, verdicts: int | None, tasks: Path, tmp_path: Path
) -> None:
    whole = untimely(run(config(tasks, tmp_path / "whole")))
    output = tmp_path / "killed"
    models = [PretendModel(text_of, die_after=answers), PretendModel(text_of), PretendModel(text_of)]
    judges = [PretendJudge(die_after=verdicts), PretendJudge(die_after=verdicts), PretendJudge()]
    finished = None
    for resume, model, judge in zip((False, output, output), models, judges, strict=True):
        try:
            finished = run(config(tasks, output), judge, model, resume=bool(resume) and output.exists())
            break
        except KeyboardInterrupt:
            continue
    assert finished is not None
    assert untimely(finished) == whole
    asked = [key for model in models for key in model.asked]
    assert sorted(asked) == sorted(set(asked))
    assert len(asked) == 6
    scored = [r for r in records(output / "verdicts.jsonl") if r["verdict"]["outcome"] != "harness_failed"]
    assert len(scored) == 5


def test_resuming_a_finished_run_judges_only_answers_with_harness_failed(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path))
    model, judge = PretendModel(text_of), PretendJudge(overrule="correct")
    run(config(tasks, tmp_path), judge, model, resume=True)
    assert (model.asked, len(judge.judged)) == ([], 1)
    assert summary(tmp_path)["metrics"]["harness_failed"] == 0


def test_a_run_can_be_resumed_with_more_samples_and_more_tasks(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path, limit=1, samples=1))
    model = PretendModel(text_of)
    run(config(tasks, tmp_path), model=model, resume=True)
    assert len(model.asked) == 5
    assert summary(tmp_path)["metrics"]["samples"] == 6


def test_answer_whose_line_was_cut_short_is_asked_for_again(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path))
    for name in ("samples.jsonl", "verdicts.jsonl"):
        file = tmp_path / name
        file.write_bytes(file.read_bytes()[:-30])
    model, judge = PretendModel(text_of), PretendJudge()
    run(config(tasks, tmp_path), judge, model, resume=True)
    assert len(model.asked) == 1
    assert len(records(tmp_path / "samples.jsonl")) == 6


def test_folder_with_a_run_is_not_changed_without_resume(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path))
    before = (tmp_path / "samples.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already holds a run: pass --resume"):
        run(config(tasks, tmp_path))
    assert (tmp_path / "samples.jsonl").read_bytes() == before


def test_resume_with_another_config_is_refused(tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path))
    with pytest.raises(
        UsageError, match=r"another config, .*: temperature was 1\.0 and is 0\.5; judge\.checks was 5 and"
    ):
        run(config(tasks, tmp_path, temperature=0.5, judge={"checks": 1}), resume=True)


def test_resume_with_a_changed_task_is_refused(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "scales")
    run(config(tasks, tmp_path / "out"))
    (tasks / "2_scale.py").write_text((tasks / "1_scale.py").read_text())
    with pytest.raises(UsageError, match="the text of task scales/2_scale changed since"):
        run(config(tasks, tmp_path / "out"), resume=True)


@pytest.mark.parametrize("name", ["samples.jsonl", "verdicts.jsonl"])
@pytest.mark.parametrize("line", ["{", '{"task": "a"}', "[]"])
def test_error_for_an_invalid_record_names_the_file(name: str, line: str, tasks: Path, tmp_path: Path) -> None:
    run(config(tasks, tmp_path))
    with (tmp_path / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        run(config(tasks, tmp_path), resume=True)


def test_mistake_before_the_first_answer_does_not_block_a_new_run(tasks: Path, tmp_path: Path) -> None:
    def no_model(config: EvaluateConfig) -> Any:
        raise UsageError("no such model")

    with pytest.raises(UsageError, match="no such model"):
        evaluate(config(tasks, tmp_path), make_model=no_model, log=io.StringIO())
    run(config(tasks, tmp_path, temperature=0.5))


def test_error_for_an_unwritable_folder_names_it(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--output .*file/out cannot be written"):
        run(config(tasks, tmp_path / "file" / "out"))


SLOW = """
import sys
sys.path.insert(0, {tests!r})
from kernel_coder.evaluate.__main__ import main
from kernel_coder.judge import Verdict
from kernel_coder.judge.admission_list import KnownAdmission, known_admission, listing
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks import Task
from pretend import PretendJudge
sys.exit(main({arguments!r}, make_judge=PretendJudge()))
"""


def started(arguments: list[str]) -> subprocess.Popen[str]:
    code = SLOW.format(tests=str(Path(__file__).parent), arguments=arguments)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_killed_process_continues_where_it_stopped(tasks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--model", "m", "--tasks", str(tasks), "--samples", "2", "--output", str(out), "--device", "cpu"]
    arguments += ["--backend", "torch", "--concurrency", "1", "--base-url"]
    reply = completion(said("correct", 2.0))
    done = 0
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 75), (None, 0)):
        hangs_after = 2 if number else 6
        with chat_server(lambda n, body, last=hangs_after: reply if n < last else Reply(b"", delay_s=90.0)) as server:  # type: ignore[misc]
            process = started([*arguments, server.url, *["--resume"] * (done > 0)])
            if number is not None:
                deadline = time.monotonic() + 100
                while len(server.requests) <= hangs_after and time.monotonic() < deadline and process.poll() is None:
                    time.sleep(0.02)
                with pytest.raises(UsageError, match="another process is writing to"):
                    run(config(tasks, out, base_url=server.url), resume=True)
                process.send_signal(number)
            printed, err = process.communicate(timeout=100)
            assert process.returncode == code, err
            done += 2
            assert len(records(out / "samples.jsonl")) == done
            assert len(server.requests) == 2 + (number is not None)
        if number == signal.SIGTERM:
            assert "error: stopped by SIGTERM; the work so far is saved in" in err
    assert printed.splitlines()[-1] == "next: kernel-coder refine MODULE.py --model m"
    assert summary(out)["metrics"]["correct"]["value"] == 1.0
