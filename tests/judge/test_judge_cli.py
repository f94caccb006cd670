"""``python -m kernel_coder.judge``: its output, its exit codes, and runs that are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import kernel_coder.judge.supervisor.open
import pytest
from fake_judge import FakeJudge
from kernel_coder import cli
from kernel_coder.judge import Outcome, Verdict, example_verdict
from kernel_coder.judge.__main__ import describe, main
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.supervisor.judge import Judge

REFERENCE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(4, 4)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeJudge]]:
    monkeypatch.setattr(kernel_coder.judge.supervisor.open, "Judge", FakeJudge)
    monkeypatch.setattr(FakeJudge, "made", [])
    yield FakeJudge.made
    assert not any(judge.is_open for judge in FakeJudge.made)


@pytest.fixture
def one(tmp_path: Path) -> Callable[..., list[str]]:
    """The command line for one candidate."""

    def arguments(candidate: str, *more: str) -> list[str]:
        (tmp_path / "relu.py").write_text(REFERENCE)
        (tmp_path / "new.py").write_text(candidate)
        files = ["--task", str(tmp_path / "relu.py"), "--candidate", str(tmp_path / "new.py")]
        return [*files, "--device", "cpu", *more]

    return arguments


def mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").strip()


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.HARNESS_FAILED])
def test_json_flag_prints_one_verdict_and_the_exit_code_is_0_for_every_outcome(
    outcome: Outcome, fake: list[FakeJudge], one: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(one(f"# outcome: {outcome}", "--json", "-v")) == 0
    out, err = capsys.readouterr()
    verdict = Verdict.from_json(out)
    assert (verdict.outcome, verdict.task, verdict.backend) == (outcome, "relu", "triton")
    assert out.count("\n") == 1
    assert "landlock" in err


def test_flags_reach_the_judge(fake: list[FakeJudge], one: Callable[..., list[str]]) -> None:
    flags = ["--backend", "cpp", "--checks", "3", "--timed_calls=7", "--hidden-shapes", "off", "--timing", "false"]
    flags += [
        "--backward",
        "--families",
        "own,normal",
        "--timeout-s",
        "2.5",
        "--memory-bytes",
        "none",
        "--workers",
        "2",
    ]
    assert main(one("# outcome: correct", *flags)) == 0
    assert fake[0].config == JudgeConfig(
        checks=3,
        timed_calls=7,
        hidden_shapes=False,
        timing=False,
        backward=True,
        families=("own", "normal"),
        timeout_s=2.5,
        memory_bytes=None,
        workers=2,
    )
    assert (fake[0].device, fake[0].backend) == ("cpu", "cpp")


def test_every_field_of_the_config_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    for name in JudgeConfig.model_fields:
        assert f"--{name.replace('_', '-')}" in said


def test_text_says_what_failed(
    fake: list[FakeJudge], one: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(one("# outcome: wrong_output")) == 0
    assert capsys.readouterr().out == (
        "wrong output: relu (triton on cpu, interpreted)\nreason: an example of wrong_output\n"
    )


def test_text_has_speedup_and_share() -> None:
    verdict = example_verdict("correct", speedup=2.0, kernel_share=0.75, feedback="ok\nfine")
    assert describe(verdict).splitlines() == [
        "correct: example (triton on NVIDIA H200)",
        "speedup: 2 (1.9 to 2.1); 1 ms, reference 2 ms",
        "kernel share: 75% of the device time is in the candidate's own kernels",
        "feedback:",
        "  ok",
        "  fine",
    ]


def test_harness_failure_prints_a_verdict_and_has_its_own_exit_code(
    fake: list[FakeJudge], one: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(one("# outcome: harness_failed", "--json")) == 3
    assert Verdict.from_json(capsys.readouterr().out).outcome is Outcome.HARNESS_FAILED
    assert main(one("# crash the judge", "--json")) == 3
    out, err = capsys.readouterr()
    assert Verdict.from_json(out).reason == "the judge failed: RuntimeError: the judge is broken"
    assert err.splitlines()[-1] == "error: the judge failed: the judge is broken"


def test_only_the_verdict_reaches_stdout(one: Callable[..., list[str]]) -> None:
    """Output of libraries and child processes goes to stderr."""
    code = (
        "import os, sys, kernel_coder.judge.supervisor.open\n"
        "from fake_judge import FakeJudge\n"
        "class Loud(FakeJudge):\n"
        "    def evaluate(self, *given, **more):\n"
        "        print('python'); os.system('echo shell'); os.write(1, b'descriptor')\n"
        "        return super().evaluate(*given, **more)\n"
        "kernel_coder.judge.supervisor.open.Judge = Loud\n"
        "from kernel_coder.judge.__main__ import main\n"
        "sys.exit(main())\n"
    )
    paths = [str(Path(kernel_coder.judge.__file__).parents[2]), str(Path(__file__).parents[1])]
    ended = subprocess.run(
        [sys.executable, "-c", code, *one("# outcome: correct", "--json")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert Verdict.from_json(ended.stdout).correct
    assert all(word in ended.stderr for word in ("python", "shell", "descriptor"))


def test_invalid_argument_is_named_in_a_one_sentence_error(
    fake: list[FakeJudge], one: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*more: str) -> str:
        return mistake(one("# outcome: correct", *more), capsys)

    assert mistake([], capsys).endswith("or --admit; got none of them")
    assert said("--admit", "packaged").endswith("got --task and --admit")
    assert mistake(["--task", "x.py"], capsys) == "--task needs --candidate"
    assert mistake(["--out", "x.jsonl", "--admit", "packaged"], capsys) == "--out needs --pairs"
    assert said("--cheks", "3") == "unknown argument --cheks; did you mean --checks?"
    assert said("--checks", "0") == "--checks: input should be greater than or equal to 1; got '0'"
    assert said("--families", "own,strange").startswith("--families: input should be 'own', 'normal'")
    assert said("--families", "own,own").startswith("families must name each kind once")
    assert said("--backend", "mojo") == "--backend must be one of triton, cuda, cpp, torch; got mojo"
    assert said("--precision", "fp8").startswith("--precision must be one of fp64, fp32")
    assert said("--device", "gpu") == "--device must be cpu, cuda, cuda:N or several such as cuda:1,cuda:2; got gpu"
    assert said("--device", "cuda:99").startswith("--device: cuda:99 is not there; torch sees ")
    assert said("--checks") == "--checks: expected one argument"
    assert said("--entry-point", "Net").endswith("the reference has no class Net")
    assert "No such file" in said("--candidate", str(tmp_path / "none.py"))
    (tmp_path / "broken.py").write_text("class Model(:")
    assert "does not parse: invalid syntax (line 1)" in said("--task", str(tmp_path / "broken.py"))
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    assert said("--candidate", str(tmp_path / "binary.py")).endswith("binary.py is not UTF-8: invalid start byte")
    assert fake == []


def test_the_judge_is_a_command_of_kernel_coder(
    fake: list[FakeJudge],
    one: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["kernel-coder"])
    monkeypatch.delitem(sys.modules, "kernel_coder.judge.__main__")
    assert cli.main(["judge", *one("# outcome: correct", "--json")]) == 0
    assert Verdict.from_json(capsys.readouterr().out).correct


def test_admit_says_why_a_task_is_refused(
    fake: list[FakeJudge], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "good.py").write_text(REFERENCE)
    (tmp_path / "tasks" / "zero.py").write_text(REFERENCE.replace("torch.relu(x)", "torch.zeros(4)"))
    (tmp_path / "tasks" / "broken.py").write_text("class Model(:")
    assert main(["--admit", str(tmp_path / "tasks"), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in out.splitlines()] == [
        "good: admitted",
        "zero: refused: zeros would pass every check",
    ]
    assert "does not parse" in err
    assert main(["--admit", str(tmp_path / "tasks" / "zero.py"), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["admitted"] is False
    assert "--admit" in mistake(["--admit", str(tmp_path / "nothing")], capsys)


# ---- pairs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Four pairs that show every way to give the sources."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "relu.py").write_text(REFERENCE)
    (tmp_path / "code" / "new.py").write_text("# outcome: correct")
    rows: list[dict[str, Any]] = [
        {"task": "code/relu.py", "candidate": "code/new.py", "backend": "cpp", "sample": 0},
        {"task": REFERENCE, "candidate": "# outcome: wrong_output", "note": {"who": ["é", 2**70]}},
        {"task": "code/relu.py", "candidate": "# outcome: rejected", "id": "mine", "precision": "bf16"},
        {"task": REFERENCE.replace("Model", "Net"), "candidate": "# outcome: timeout", "entry_point": "Net"},
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "pairs.jsonl"


def command(pairs: Path, *more: str) -> list[str]:
    return ["--pairs", str(pairs), "--out", str(pairs.with_name("out.jsonl")), "--device", "cpu", *more]


def written(pairs: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pairs.with_name("out.jsonl").read_text().splitlines()]


def test_pairs_get_verdicts_in_order_with_their_other_keys(
    fake: list[FakeJudge], pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(pairs)) == 0
    rows = written(pairs)
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["verdict"]["outcome"] for row in rows] == ["correct", "wrong_output", "rejected", "timeout"]
    assert [row["verdict"]["task"] for row in rows] == ["relu", "line2", "mine", "line4"]
    assert rows[0]["sample"] == 0
    assert rows[1]["note"] == {"who": ["é", 2**70]}
    assert not {"task", "candidate"} & rows[0].keys()
    for row in rows:
        assert Verdict.from_json(json.dumps(row["verdict"])).seeds == (2**127 + 1,)
    out, err = capsys.readouterr()
    assert out == ""
    assert "4/4" in err
    assert "4 verdicts in" in err
    assert fake[0].judged[0] == "# outcome: correct"


def test_rerun_judges_no_pair_twice(fake: list[FakeJudge], pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(pairs)) == 0
    before = pairs.with_name("out.jsonl").read_bytes()
    assert main(command(pairs, "--workers", "1")) == 0
    assert len(fake) == 1
    assert pairs.with_name("out.jsonl").read_bytes() == before
    assert "4 of 4 pairs are judged already" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [0, 1, 2.5, 3.999])
def test_run_that_was_killed_continues_to_the_same_output_file(fake: list[FakeJudge], pairs: Path, kept: float) -> None:
    out = pairs.with_name("out.jsonl")
    assert main(command(pairs)) == 0
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    half = lines[int(kept)] if int(kept) < len(lines) else b""
    out.write_bytes(b"".join(lines[: int(kept)]) + half[: int(len(half) * (kept % 1))])
    assert main(command(pairs)) == 0
    assert out.read_bytes() == whole
    assert len(fake[1].judged) == 4 - int(kept)


def test_changed_input_is_refused(fake: list[FakeJudge], pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(pairs)) == 0
    whole = pairs.with_name("out.jsonl").read_bytes()
    assert "or one with other settings" in mistake(command(pairs, "--checks", "2"), capsys)
    (pairs.parent / "code" / "new.py").write_text("# outcome: rejected")
    assert "has a verdict on another pairs.jsonl line 1" in mistake(command(pairs), capsys)
    (pairs.parent / "code" / "new.py").write_text("# outcome: correct")
    pairs.write_text("".join(pairs.read_text().splitlines(keepends=True)[:2]))
    assert "has 4 verdicts, the input 2 pairs" in mistake(command(pairs), capsys)
    assert pairs.with_name("out.jsonl").read_bytes() == whole
    assert len(fake) == 1


def test_pair_on_which_the_harness_failed_is_judged_again(fake: list[FakeJudge], pairs: Path) -> None:
    """The next run judges the pair again. Its line keeps its place in the file."""
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    rows[1]["candidate"] = "# outcome: harness_failed"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(command(pairs)) == 3
    assert main(command(pairs)) == 3
    assert fake[1].judged == ["# outcome: harness_failed"]
    out = pairs.with_name("out.jsonl")
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:3]))  # the last pair has no line any more
    mended = FakeJudge.evaluate

    def evaluate(self: FakeJudge, task: Any, candidate: str, backend: str | None = None) -> Verdict:
        return mended(self, task, candidate.replace("harness_failed", "correct"), backend)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeJudge, "evaluate", evaluate)
        assert main(command(pairs)) == 0
    assert [row["verdict"]["outcome"] for row in written(pairs)] == ["correct", "correct", "rejected", "timeout"]
    assert [row["index"] for row in written(pairs)] == [0, 1, 2, 3]
    assert sorted(path.name for path in pairs.parent.iterdir()) == ["code", "out.jsonl", "pairs.jsonl"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "pairs.jsonl line 5 is not JSON"),
        ("[1]", "pairs.jsonl line 5 must be an object with task and candidate; got list"),
        ('{"task": "x = 1"}', "pairs.jsonl line 5 needs candidate as text; got None"),
        ('{"task": "code/none.py", "candidate": "x"}', "line 5: task: code/none.py cannot be read: No such file"),
        ('{"task": "x", "candidate": "x", "backend": "mojo"}', "line 5: backend must be one of triton"),
        ('{"task": "x", "candidate": "x", "precision": "fp8"}', "line 5: precision of task line5 must be one of"),
        ('{"task": "x", "candidate": "x", "verdict": 1}', "line 5 has the key verdict, which the output uses"),
        ('{"task": "", "candidate": "x"}', "reference of a task must be text that is not empty"),
        ('{"task": "x", "candidate": "x", "note": NaN}', "NaN is no JSON"),
    ],
)
def test_broken_line_is_named_before_anything_is_judged(
    line: str, said: str, fake: list[FakeJudge], pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs.write_text(pairs.read_text() + "\n" + line + "\n")  # an empty line is not a pair
    assert said.replace("line 5", "line 6").replace("line6", "line5") in mistake(command(pairs), capsys)
    assert fake == []


def test_unusable_pairs_or_output_file_is_refused(
    fake: list[FakeJudge], pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--pairs", str(pairs), "--out", str(pairs)]
    assert mistake(arguments, capsys).startswith("--out must be another file than --pairs")
    assert "cannot be written" in mistake([*arguments[:3], str(pairs.parent / "no" / "out.jsonl")], capsys)
    pairs.with_name("out.jsonl").write_text('{"something": "else"}\n')
    assert "is no verdict on pair 0" in mistake(command(pairs), capsys)
    assert pairs.with_name("out.jsonl").read_text() == '{"something": "else"}\n'
    assert "cannot be read" in mistake(["--pairs", "none.jsonl", "--out", str(pairs.parent / "new.jsonl")], capsys)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_that_is_ended_by_a_signal_keeps_its_verdicts(
    number: signal.Signals,
    fake: list[FakeJudge],
    pairs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    judge = FakeJudge.evaluate

    def evaluate(self: FakeJudge, task: Any, candidate: str, backend: str | None = None) -> Verdict:
        if "rejected" in candidate:
            os.kill(os.getpid(), number)
        return judge(self, task, candidate, backend)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(FakeJudge, "evaluate", evaluate)
        assert main(command(pairs)) == 75
    assert signal.getsignal(number) is before
    assert f"{number.name} received" in capsys.readouterr().err
    assert len(written(pairs)) == 2
    assert not fake[0].is_open
    assert main(command(pairs)) == 0
    assert [row["verdict"]["outcome"] for row in written(pairs)] == ["correct", "wrong_output", "rejected", "timeout"]


# ---- the real judge ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_real_verdicts_on_the_cpu(one: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    honest = REFERENCE.replace("class Model", "class ModelNew").replace("torch.relu(x)", "x.clamp(min=0)")
    arguments = one(honest, "--backend", "torch", "--no-timing", "--workers", "1", "-v")
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("correct: relu (torch on cpu)\nspeedup: not measured\n")
    assert "error of output: 0" in out
    assert "seccomp" in err
    folder = Path(arguments[1]).parent
    wrong = honest.replace("min=0", "min=1")
    rows = [
        {"task": "relu.py", "candidate": source, "backend": "torch"} for source in (honest, wrong, "class ModelNew(")
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(command(folder / "pairs.jsonl", "--no-timing", "--workers", "1")) == 0
    verdicts = [Verdict.from_json(json.dumps(row["verdict"])) for row in written(folder / "pairs.jsonl")]
    assert [verdict.outcome for verdict in verdicts] == ["correct", "wrong_output", "compile_error"]
    assert verdicts[1].errors[0].mismatches > 0
    assert main(["--admit", str(folder / "relu.py"), "--device", "cpu", "--json", "--no-timing"]) == 0
    assert json.loads(capsys.readouterr().out) == {"task": ANY, "admitted": True, "reason": None}


def test_closing_after_an_exception_does_not_wait_for_candidates() -> None:
    endless = "class ModelNew: pass\nwhile True: pass"
    started = time.monotonic()
    try:
        with Judge(device="cpu", backend="torch", config=JudgeConfig(workers=2, timing=False)) as judge:
            verdicts = judge.evaluate_many([(REFERENCE, "class ModelNew("), *[(REFERENCE, endless)] * 5])
            assert next(verdicts).outcome is Outcome.COMPILE_ERROR
            time.sleep(1.0)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert time.monotonic() - started < 30
