"""Distillation with a right, a wrong, a slow and a failing teacher: no answer is lost or wrongly kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from careful_judge import CarefulJudge
from chat_server import ChatServer, Reply, chat_server, completion, refusal
from kernel_coder.data.__main__ import main
from kernel_coder.data.build import Plan, build
from kernel_coder.data.questions import DistillPlan, make_questions, read_answer, read_ops
from kernel_coder.evaluate import server as client
from kernel_coder.prompts import build_answer
from kernel_coder.tasks import load_tasks
from kernel_coder.tasks.build_pairs import COLUMNS

HERE = Path(__file__).parent
HELPERS = "def get_inputs():\n    return [torch.rand(5, 7) - 0.5]\n\n\ndef get_init_inputs():\n    return []\n"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.01)


def module(number: int, body: str | None = None) -> str:
    """A reference. Each number gives a different syntax tree."""
    body = body or "x + 1" + " * x" * number
    return (
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
        f"    def forward(self, x):\n        return {body}\n\n\n{HELPERS}"
    )


def solution(outcome: str, number: int = 0) -> str:
    return f"# outcome: {outcome}\nclass ModelNew:\n    size = x{'[0]' * number}\n"


def implemented(number: int, outcome: str = "correct", reference: str | None = None) -> str:
    reference = reference or module(number)
    return (
        f"<thinking>\nOne kernel, number {number}.\n</thinking>\n<answer>\n```python\n{reference}```\n"
        f"```python\n{solution(outcome, number)}```\n</answer>"
    )


def number_in(body: dict[str, Any]) -> int:
    """The number of the operation or of the module in the question."""
    said = body["messages"][-1]["content"]
    if found := re.search(r"operation (\d+)", said):
        return int(found[1])
    return re.search(r"return (.*)\n", said)[1].count("* x")  # type: ignore[index]


def right(number: int, body: dict[str, Any]) -> Reply:
    return completion(implemented(number_in(body)))


def write_ops(folder: Path, count: int) -> Path:
    path = folder / "ops.txt"
    path.write_text("# what is asked\n\n" + "".join(f"relu | operation {i}\n" for i in range(count)))
    return path


def run(
    out: Path, server: ChatServer | None, *arguments: object, make_judge: Any = CarefulJudge, **injected: Any
) -> int:
    where = ["--base-url", server.url] if server else []
    given = ["distill", "--out", out, "--model", "teacher-1", "--device", "cpu", "--samples", 1, *where, *arguments]
    return main(list(map(str, given)), make_judge=make_judge, **injected)


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows


def report_of(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(out.with_suffix(".report.json").read_text())
    return report


def answers_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.with_suffix(".answers.jsonl").read_text().splitlines()[1:]]


def stages(out: Path) -> dict[str, int]:
    return dict(Counter(drop["stage"] for drop in report_of(out)["drops"]))


# Teachers -------------------------------------------------------------------------------------------------------------


def test_a_right_teacher_gives_rows_that_load_as_tasks(tmp_path: Path) -> None:
    out = tmp_path / "pairs.parquet"
    with chat_server(right) as server:
        code = run(out, server, "--implement", write_ops(tmp_path, 9), "--concurrency", 3)
        assert code == 0
        assert {body["model"] for body in server.requests} == {"teacher-1"}
        assert server.most_at_a_time <= 3
    rows = rows_of(out)
    assert tuple(rows[0])[: len(COLUMNS)] == COLUMNS
    assert [one["kind"] for one in rows] == ["implement"] * 9
    first = rows[0]
    assert (first["family"], first["op"], first["teacher"], first["sample"]) == ("relu", "operation 0", "teacher-1", 0)
    assert (first["prompt_tokens"], first["completion_tokens"], first["verified"]) == (11, 7, True)
    assert first["python_code"] == module(0)
    assert first["triton_code"].startswith("# outcome: correct")
    tasks = load_tasks(out)
    assert not tasks.problems
    assert len(tasks) == len(rows)
    for task in tasks:
        assert task.solution is not None
        assert "One kernel, number" in build_answer(task.solution, task.metadata["thinking"])


def test_conversions_keep_module_licence_and_metadata(tmp_path: Path) -> None:
    build_out, out = tmp_path / "built.parquet", tmp_path / "pairs.parquet"
    build(Plan(count=3, families=("softmax",)), build_out, _Trusting())
    with chat_server(lambda n, body: completion(build_answer(solution("correct", n), "Hm."))) as server:
        assert run(out, server, "--convert", build_out) == 0
    built, rows = rows_of(build_out), rows_of(out)
    for name in ("python_code", "uuid", "licenses", "family", "level", "composition", "split", "fingerprint"):
        assert [one[name] for one in rows] == [one[name] for one in built]
    assert {one["kind"] for one in rows} == {"convert"}


class _Trusting:
    name = "trusting"

    def __enter__(self) -> _Trusting:
        return self

    def __exit__(self, *error: object) -> None: ...

    def verify(self, candidates: Any) -> Any:
        from kernel_coder.data.verifiers import Finding

        for _ in candidates:
            yield Finding(True, None, 0.0)


@pytest.mark.parametrize("outcome", ["wrong_output", "compile_error", "timeout", "rejected", "harness_failed"])
def test_no_answer_of_a_wrong_teacher_is_kept(tmp_path: Path, outcome: str) -> None:
    out = tmp_path / "pairs.parquet"
    with chat_server(lambda n, body: completion(implemented(number_in(body), outcome))) as server:
        code = run(out, server, "--implement", write_ops(tmp_path, 4))
    assert code == (3 if outcome == "harness_failed" else 0)
    assert rows_of(out) == []
    drops = report_of(out)["drops"]
    assert len(drops) == len(answers_of(out)) == 4
    if outcome == "harness_failed":
        assert {drop["stage"] for drop in drops} == {"judge"}
    else:
        assert {(drop["stage"], drop["outcome"]) for drop in drops} == {("verification", outcome)}


def test_only_right_answers_are_kept_and_each_drop_has_a_reason(tmp_path: Path) -> None:
    """Answers: right, duplicate, wrong, no code, one block, not admitted, from KernelBench, empty, forbidden import."""
    again = solution("correct", 0).replace("size", "width")
    relu = module(0, "torch.relu(x)")
    said = [
        implemented(0),
        f"```python\n{module(0)}```\n```python\n{again}```",
        implemented(1, "wrong_output"),
        "I would rather not.",
        f"```python\n{module(3)}\n{solution('correct', 3)}```",
        implemented(4, reference=module(4, "torch.zeros(3) * x")),
        implemented(5, reference=relu),
        "",
        implemented(7, reference=module(7).replace("import torch\n", "import torch\nimport os\n", 1)),
    ]
    out = tmp_path / "pairs.parquet"
    with chat_server(lambda n, body: completion(said[number_in(body)])) as server:
        assert run(out, server, "--implement", write_ops(tmp_path, len(said))) == 0
    (row,) = rows_of(out)
    assert row["op"] == "operation 0"
    drops = {d["id"]: (d["stage"], d["reason"]) for d in report_of(out)["drops"]}
    reasons = [drops[f"implement/{hashlib.sha256(f'operation {i}'.encode()).hexdigest()[:12]}"] for i in range(1, 9)]
    assert reasons[0] == ("duplicate", "an earlier pair differs only in names and constants")
    assert reasons[1][0] == "verification"
    assert reasons[2] == ("answer", "the answer holds no closed code block")
    assert reasons[3] == ("answer", "the answer has Model and ModelNew in one code block instead of two")
    assert reasons[4] == ("task", "the task is refused: the candidate that returns zeros would pass")
    assert reasons[5] == ("contamination", "it is KernelBench's level1/19_ReLU")
    assert reasons[6][0] == "answer"
    assert reasons[7] == ("answer", "the reference imports os; it must be plain PyTorch")
    assert sum(line["count"] for line in report_of(out)["table"]) == 8


def test_judge_works_while_a_slow_teacher_answers(tmp_path: Path) -> None:
    out = tmp_path / "pairs.parquet"

    def slow(number: int, body: dict[str, Any]) -> Reply:
        if number == 6:  # so slow that the judge finishes all earlier answers
            wait_for(lambda: lines(out.with_suffix(".verdicts.jsonl")) == 6)
        return right(number, body)

    with chat_server(slow) as server:
        assert run(out, server, "--implement", write_ops(tmp_path, 9), "--concurrency", 1) == 0
        assert len(server.requests) == 9
    assert len(rows_of(out)) == 9


TROUBLE = {
    "500": refusal(500, "oops"),
    "429": refusal(429, "slow down"),
    "dropped": Reply("", is_dropped=True),
    "malformed": Reply('{"choices": [{"mess'),
    "no choices": Reply({"choices": []}),
    "nothing": Reply(""),
    "late": Reply("{}", delay_s=1.5),
}


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE)
def test_failing_teacher_is_asked_again_until_every_answer_is_there(tmp_path: Path, trouble: Reply) -> None:
    out, seen, lock = tmp_path / "pairs.parquet", set[int](), threading.Lock()

    def behave(number: int, body: dict[str, Any]) -> Reply:
        with lock:
            is_first = (asked := number_in(body)) not in seen
            seen.add(asked)
        return trouble if is_first and asked % 2 else right(number, body)

    with chat_server(behave) as server:
        arguments = ("--implement", write_ops(tmp_path, 4), "--request-timeout-s", 1, "--max-retries", 2)
        assert run(out, server, *arguments) == 0
        assert len(server.requests) == 6
    assert len(rows_of(out)) == 4
    assert report_of(out)["complete"] is True


def test_teacher_that_stays_unavailable_ends_the_run_and_the_same_command_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, is_ill = tmp_path / "pairs.parquet", True

    def behave(number: int, body: dict[str, Any]) -> Reply:
        return refusal(503, "loading") if is_ill and number_in(body) >= 3 else right(number, body)

    with chat_server(behave) as server:
        arguments = ("--implement", write_ops(tmp_path, 20), "--max-retries", 1, "--concurrency", 2)
        assert run(out, server, *arguments) == 75
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert "gave no answer in 2 tries" in error
        assert error.endswith("all answers are saved: the same command continues")
        assert len(rows_of(out)) == 3  # the rows so far are written
        assert report_of(out)["complete"] is False
        is_ill = False
        answered, asked = {record["question"] for record in answers_of(out)}, len(server.requests)
        assert run(out, server, *arguments) == 0
        assert len(server.requests) - asked == 20 - len(answered)
    assert len(rows_of(out)) == 20


def test_error_for_a_teacher_that_refuses_access_names_the_key_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pairs.parquet"
    with chat_server(lambda n, body: refusal(401, "no key")) as server:
        assert run(out, server, "--implement", write_ops(tmp_path, 2)) == 2
    assert "name a variable that holds its key with --api-key-env" in capsys.readouterr().err
    assert not out.exists()


def test_key_comes_from_the_named_variable_and_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "sesame")
    with chat_server(right) as server:
        run(tmp_path / "p.parquet", server, "--implement", write_ops(tmp_path, 1), "--api-key-env", "TEACHER_KEY")
        assert server.keys == ["Bearer sesame"]
    assert "sesame" not in "".join(path.read_text() for path in tmp_path.glob("p.*json*"))


RAMP = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def ramp_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n, other=0.0)
    tl.store(out_ptr + places, tl.maximum(x, 0.0) * 2 + x, mask=places < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        ramp_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out
"""


@pytest.mark.long
@pytest.mark.slow
def test_real_judge_keeps_only_right_answers(tmp_path: Path) -> None:
    """Right; wrong; without an own kernel; a reference for which zeros would pass; a right conversion."""
    ramp = "torch.relu(x) * 2 + x"
    lazy = (
        "import torch\nfrom torch import nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return "
    )
    said = [
        (module(0, ramp), RAMP),
        (module(0, ramp), RAMP.replace("* 2 +", "* 3 +")),
        (module(0, ramp), f"{lazy}{ramp}\n"),
        (module(0, "x * 0 + (x - x)"), RAMP.replace("tl.maximum(x, 0.0) * 2 + x", "x * 0")),
    ]

    def behave(number: int, body: dict[str, Any]) -> Reply:
        if "operation" not in body["messages"][-1]["content"]:
            return completion(build_answer(RAMP.replace("* 2 + x", "* 2 + x + 1")))
        reference, code = said[number_in(body)]
        return completion(f"```python\n{reference}```\n```python\n{code}```")

    from kernel_coder.evaluate.run import load_judge

    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "a.py").write_text(module(0, f"{ramp} + 1"))
    out = tmp_path / "p.parquet"
    with chat_server(behave) as server:
        arguments = ("--implement", write_ops(tmp_path, 4), "--convert", tmp_path / "modules", "--workers", 2)
        assert run(out, server, *arguments, make_judge=load_judge) == 0
    assert [(one["kind"], one["triton_code"].count("* 2 +")) for one in rows_of(out)] == [
        ("implement", 1),
        ("convert", 1),
    ]
    drops = report_of(out)["drops"]
    assert [drop["stage"] for drop in drops] == ["verification", "verification", "task"]
    assert [drop.get("outcome") for drop in drops] == ["wrong_output", "rejected", None]


# Stopping and resuming ------------------------------------------------------------------------------------------------


def command(out: Path, server: ChatServer, *arguments: object) -> list[str]:
    given = ["distill", "--out", out, "--model", "teacher-1", "--device", "cpu", "--base-url", server.url, *arguments]
    return [sys.executable, str(HERE / "careful_judge.py"), *map(str, given)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.long
def test_killed_run_repeats_no_answered_question_and_ends_with_the_same_rows(tmp_path: Path) -> None:
    arguments = ("--implement", write_ops(tmp_path, 10), "--samples", 2, "--concurrency", 2, "--workers", 1)
    answered: Counter[tuple[str, int]] = Counter()
    gate, lock = threading.Event(), threading.Lock()

    def behave(number: int, body: dict[str, Any]) -> Reply:
        """Some answers are wrong. From the ninth on, requests wait for the gate, so the kill hits open requests."""
        with lock:
            held = sum(answered.values()) >= 8 and not gate.is_set()
            if not held:
                answered[body["messages"][-1]["content"], body["seed"]] += 1
        if held:
            return Reply("", delay_s=30.0, is_dropped=True)
        asked = number_in(body)
        return completion(implemented(asked, "wrong_output" if asked % 3 == 1 else "correct"))

    out, log = tmp_path / "parts" / "p.parquet", tmp_path / "parts" / "p.answers.jsonl"
    with chat_server(behave) as server:
        process = subprocess.Popen(
            command(out, server, *arguments), env=environment(JUDGE_SECONDS="0.05"), stderr=subprocess.DEVNULL
        )
        wait_for(lambda: lines(log) == 9 and lines(out.with_suffix(".verdicts.jsonl")) >= 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not out.exists()
        with log.open("ab") as file:
            file.write(b'{"prompt": "torn')
        gate.set()
        done = subprocess.run(command(out, server, *arguments), env=environment(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert len(answered) == 20
        assert set(answered.values()) == {1}  # no answered question is asked again
        whole = tmp_path / "whole" / "p.parquet"
        subprocess.run(command(whole, server, *arguments), env=environment(), check=True, capture_output=True)
    assert whole.read_bytes() == out.read_bytes()
    assert len(rows_of(out)) == 7
    one, other = report_of(whole), report_of(out)
    assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_signal_ends_the_run_at_once_and_the_error_says_how_to_continue(tmp_path: Path, number: int) -> None:
    out = tmp_path / "p.parquet"

    def behave(asked: int, body: dict[str, Any]) -> Reply:
        return right(asked, body) if asked < 3 else Reply("", delay_s=200.0, is_dropped=True)

    with chat_server(behave) as server:
        process = subprocess.Popen(
            command(out, server, "--implement", write_ops(tmp_path, 9), "--samples", 1),
            env=environment(),
            stderr=subprocess.PIPE,
        )
        try:
            wait_for(lambda: lines(out.with_suffix(".verdicts.jsonl")) == 3)
            began = time.monotonic()
            process.send_signal(number)
            _, error = process.communicate(timeout=150)
        finally:
            process.kill()
        assert time.monotonic() - began < 100  # the run does not wait for the server
    assert process.returncode == 75
    sentence = f"error: stopped by {signal.Signals(number).name}; all answers are saved: the same command continues"
    assert error.decode().strip().splitlines()[-1].startswith(sentence)
    assert len(rows_of(out)) == 3
    assert report_of(out)["complete"] is False


def test_second_run_asks_and_judges_nothing_and_more_samples_extend_the_first(tmp_path: Path) -> None:
    out, ops = tmp_path / "p.parquet", write_ops(tmp_path, 5)
    with chat_server(right) as server:
        assert run(out, server, "--implement", ops) == 0
        before = out.read_bytes()
        CarefulJudge.made.clear()
        assert run(out, server, "--implement", ops) == 0
        assert (len(server.requests), CarefulJudge.made) == (5, [])
        assert out.read_bytes() == before
        assert run(out, server, "--implement", ops, "--samples", 3) == 0
        assert len(server.requests) == 15
    assert report_of(out)["answers"] == 15
    assert len(rows_of(out)) == 5  # the other ten answers repeat these


def test_answers_on_which_the_judge_failed_are_judged_again_without_asking(tmp_path: Path) -> None:
    class Broken(CarefulJudge):
        def evaluate(self, task: Any, candidate: str, backend: str | None = None) -> Any:
            return super().evaluate(task, candidate.replace("correct", "harness_failed"), backend)

    out, ops = tmp_path / "p.parquet", write_ops(tmp_path, 3)
    with chat_server(right) as server:
        assert run(out, server, "--implement", ops, make_judge=Broken) == 3
        assert len(answers_of(out)) == 3
        assert run(out, server, "--implement", ops) == 0
        assert len(server.requests) == 3
    assert len(rows_of(out)) == 3


def test_teacher_is_not_asked_when_the_judge_cannot_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kernel_coder.evaluate.errors import HarnessFailed

    def impossible(**_: Any) -> Any:
        raise HarnessFailed("the judge cannot start on this machine: no sandbox")

    with chat_server(right) as server:
        assert run(tmp_path / "p.parquet", server, "--implement", write_ops(tmp_path, 3), make_judge=impossible) == 3
        assert server.requests == []
    assert "the judge cannot start on this machine: no sandbox" in capsys.readouterr().err


def test_log_of_answers_with_other_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, ops = tmp_path / "p.parquet", write_ops(tmp_path, 1)
    with chat_server(right) as server:
        assert run(out, server, "--implement", ops) == 0
        assert run(out, server, "--implement", ops, "--temperature", 0.5) == 2
    assert "holds answers with other settings: temperature was 1.0 and is 0.5" in capsys.readouterr().err


# Questions ------------------------------------------------------------------------------------------------------------


def test_a_local_model_answers_everything_before_the_judge_begins(tmp_path: Path) -> None:
    order: list[str] = []

    class Model:
        def answer(self, requests: Any, poll: Any) -> Any:
            from kernel_coder.evaluate.answers import Answer

            for one in requests:
                order.append("answer")
                yield one, Answer(implemented(len(order)), "stop", 5, 6, seconds=0.5)

        def close(self) -> None:
            order.append("closed")

    class Noting(CarefulJudge):
        def evaluate(self, *arguments: Any) -> Any:
            order.append("verdict")
            return super().evaluate(*arguments)

    out = tmp_path / "p.parquet"
    assert (
        run(out, None, "--implement", write_ops(tmp_path, 3), make_judge=Noting, make_model=lambda config: Model()) == 0
    )
    assert order == ["answer"] * 3 + ["closed"] + ["verdict"] * 3
    report = report_of(out)
    assert (report["prompt_tokens"], report["completion_tokens"], report["seconds"]) == (15, 18, 1.5)


def test_real_local_model_can_be_the_teacher(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    given = ["distill", "--out", out, "--model", "tiny", "--implement", write_ops(tmp_path, 2), "--samples", 1]
    assert main([*map(str, given), "--max-new-tokens", "4", "--device", "cpu"], make_judge=CarefulJudge) == 0
    assert [record["completion_tokens"] for record in answers_of(out)] == [4, 4]
    assert stages(out) == {"answer": 2}


def test_report_has_the_tokens_and_the_cost_of_all_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.parquet"
    with chat_server(right) as server:
        prices = ("--price-prompt", 1_000, "--price-completion", 10_000)
        assert run(out, server, "--implement", write_ops(tmp_path, 4), *prices) == 0
    report = report_of(out)
    assert (report["prompt_tokens"], report["completion_tokens"]) == (44, 28)
    assert report["cost"] == pytest.approx((44 * 1_000 + 28 * 10_000) / 1e6)
    said = capsys.readouterr().out
    assert "4 pairs from 4 answers (100%) to 4 questions" in said
    assert "44 prompt and 28 completion tokens, 0.324 in total, 0.081 per pair" in said


def test_no_question_is_about_held_out_or_evaluation_tasks(tmp_path: Path) -> None:
    questions, dropped = make_questions(
        DistillPlan(convert=("generator",), implement=("generator",), count=40, per_structure=5)
    )
    assert {question.about["split"] for question in questions} == {"train"}
    assert Counter(question.kind for question in questions) == {"convert": 40, "implement": 40}
    assert {drop["stage"] for drop in dropped} >= {"split"}
    folder = tmp_path / "level1"
    folder.mkdir()
    (folder / "19_ReLU.py").write_text(module(0, "torch.relu(x)"))
    with pytest.raises(ValueError, match=r"there are no questions: .*: level1/19_ReLU: it is KernelBench's"):
        make_questions(DistillPlan(convert=(str(folder),)))


def test_packaged_operations_are_unique_and_of_training_families() -> None:
    from kernel_coder.tasks.generator import FAMILIES, HELDOUT_FAMILIES

    ops = read_ops("ops")
    assert len(ops) > 100
    assert len({op for op, _ in ops}) == len(ops)
    assert {about["family"] for _, about in ops} == set(FAMILIES) - HELDOUT_FAMILIES


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there are no questions: pass --implement"),
        (
            ["--implement", "no-such-file"],
            "--implement must be ops, generator or a text file; there is no file no-such-",
        ),
        (["--convert", "no-such-file"], "data.path names no file or folder: no-such-file"),
        (["--implement", "generator"], "the generator makes any number of questions: --count"),
        (["--implement", "ops", "--samples", "0"], "--samples must be at least 1; got 0"),
        (["--implement", "ops", "--count", "0"], "--count must be at least 1; got 0"),
        (["--implement", "ops", "--families", "relu"], "--families must be among"),
        (["--implement", "ops", "--base-url", "localhost"], "base_url must look like http://localhost:8000/v1"),
        (["--implement", "ops", "--extra-body", "[]"], "--extra-body: must be a JSON object; got '[]'"),
        (["--implement", "ops", "--price-prompt", "-1"], "--price-prompt must be at least 0; got -1"),
        (["--implement", "ops", "--timeout", "0"], "--timeout must be more than 0; got 0"),
        (["--implement", "ops", "--workers", "0"], "--workers: input should be greater than or equal to 1; got 0"),
        (["--implement", "ops", "--temprature", "1"], "unknown argument --temprature; did you mean --temperature?"),
        (["--implement", "ops", "--samples", "many"], "--samples: invalid int value: 'many'"),
        (["--implement", "ops", "--out", "pairs.csv"], "--out must end in .parquet; got pairs.csv"),
        (["--implement", "ops", "--prompt-template", "x", "--convert", "packaged"], "prompt template x is neither one"),
    ],
)
def test_mistake_gives_one_sentence(
    tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "p.parquet")]
    assert main(["distill", *out, "--model", "m", *arguments], make_judge=CarefulJudge) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"error: {sentence}")


# Answers --------------------------------------------------------------------------------------------------------------


def question() -> Any:
    (only,), _ = make_questions(DistillPlan(implement=("ops",), count=1))
    return only


def test_both_modules_are_found_in_every_layout_of_an_answer() -> None:
    reference, code = module(1), "class ModelNew: ...\n"
    blocks = f"```python\n{reference}```\nand\n~~~\n{code}~~~\n"
    for text in (
        blocks,
        f"<thinking>Hm.</thinking><answer>{blocks}</answer>",
        f"<think>Maybe\n```\nclass Model: ...\n```\n</think>{blocks}",
        f"```python\n{code}```\n```python\n{reference}```\n".replace("\n", "\r\n"),
        f"First a sketch:\n```\nprint(1)\n```\n{blocks}",
    ):
        pair = read_answer(question(), text)
        assert (pair.task.reference, pair.code) == (reference, code)


def test_reasoning_is_found_in_tags_or_in_the_separate_field() -> None:
    blocks = f"```python\n{module(1)}```\n```python\nclass ModelNew: ...\n```\n"

    def thinking(text: str, reasoning: str | None = None) -> str | None:
        found: str | None = read_answer(question(), text, reasoning).thinking
        return found

    assert thinking(f"<thinking>\nOwn.\n</thinking><answer>{blocks}</answer>", "apart") == "Own."
    assert thinking(blocks, " apart ") == "apart"
    assert thinking(f"<think>\nBefore.\n</think>\n{blocks}") == "Before."
    assert thinking(blocks) is None
    assert thinking(blocks, "I write <answer> soon") is None  # an answer that contains this text could not be learnt


def test_reasoning_in_a_separate_field_of_the_reply_is_kept(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Reply:
        reply = completion(re.sub(r"<thinking>.*</thinking>", "", implemented(0), flags=re.DOTALL))
        reply.body["choices"][0]["message"]["reasoning_content"] = "Apart."  # type: ignore[index]
        return reply

    out = tmp_path / "p.parquet"
    with chat_server(behave) as server:
        assert run(out, server, "--implement", write_ops(tmp_path, 1)) == 0
        assert rows_of(out)[0]["thinking"] == "Apart."
        assert answers_of(out)[0]["reasoning"] == "Apart."
        assert run(out, server, "--implement", write_ops(tmp_path, 1), "--drop-thinking") == 0
        assert rows_of(out)[0]["thinking"] is None
        assert len(server.requests) == 1
