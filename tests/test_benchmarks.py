"""The benchmarks run at small shapes. The results of each contender are checked, the times are not."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CHECKED = {
    "token_logprobs": {"error_logprobs", "error_entropy", "error_gradient"},
    "grpo_loss": {"error_loss", "error_logprobs", "error_gradient"},
    "linear_grpo_loss": {"error_loss", "error_logprobs", "error_grad_hidden", "error_grad_weight"},
}


@pytest.fixture(autouse=True)
def benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS, BENCHMARKS / "ops", BENCHMARKS / "judge", BENCHMARKS / "training"):
        monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
@pytest.mark.parametrize("op", CHECKED)
def test_small_shapes_run(op: str, quick: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.csv"
    words = f"{op} --shapes small --device {device} --rivals eager,verl --rounds 1 --settle 0 --limit 0 --commit abc"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--out", str(out), *["--quick"] * quick])
    importlib.import_module(f"bench_{op}").main()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert not [row["failure"] for row in rows if row.get("failure")]
    assert all(float(row["median_ms"]) > 0 and row["commit"] == "abc" for row in rows)
    kinds = {row["kind"] for row in rows}
    assert kinds == ({"floor", "ours"} if quick else {"floor", "ours", "rival"})
    wanted = CHECKED[op] - ({"error_gradient"} if quick and op == "token_logprobs" else set())
    assert wanted <= {name for row in rows if row["kind"] == "ours" for name, value in row.items() if value}
    assert any(row["of_full"] for row in rows if row["kind"] == "ours")


def test_contender_that_fails_or_gives_wrong_results_gets_a_row_without_times() -> None:
    from side_by_side import Contender, compare

    def fail() -> None:
        raise RuntimeError("no\nmore")

    def run_out() -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate")

    arguments = Namespace(device="cpu", rivals="all", runs=1, rounds=1, settle=0, limit=0)
    rows = compare(
        [
            Contender("right", "1", lambda: None, errors=lambda: {"loss": 0.001}),
            Contender("wrong", "1", lambda: None, errors=lambda: {"loss": 0.1}),
            Contender("not a number", "1", lambda: None, errors=lambda: {"loss": float("nan")}),
            Contender("failing", "1", fail),
            Contender("large", "1", run_out),
        ],
        arguments,
        {},
    )
    assert ["median_ms" in row for row in rows] == [True, False, False, False, False]
    assert [row.get("failure") for row in rows] == [
        None,
        "AssertionError: computes something else: loss off by 0.1",
        "AssertionError: computes something else: loss off by nan",
        "RuntimeError: no",
        "out of memory",
    ]


def test_supervised_step_runs_beside_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.csv"
    words = "sft --shapes small --device cpu --quick --rounds 1 --settle 0 --limit 0 --commit abc"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--out", str(out)])
    importlib.import_module("bench_sft").main()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert not [row["failure"] for row in rows if row.get("failure")]
    assert [row["kind"] for row in rows] == ["ours", "rival"]
    assert all(float(row["tokens_per_s"]) > 0 and float(row["of_trainer"]) > 0 for row in rows)


TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}
def get_inputs():
    return [torch.rand(4, 16)]
def get_init_inputs():
    return []
"""


@pytest.mark.cpu
def test_admissions_are_written_and_a_second_run_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "level1", tmp_path / "rows.csv"
    folder.mkdir()
    (folder / "10_square.py").write_text(TASK.format(expression="x * x"))
    (folder / "2_zeros.py").write_text(TASK.format(expression="torch.zeros_like(x)"))
    monkeypatch.setattr(sys, "argv", ["x", str(folder), "--device", "cpu", "--out", str(out)])
    module = importlib.import_module("bench_admission")
    module.main()
    module.main()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["admitted"]) for row in rows] == [
        ("level1/2_zeros", "False"),
        ("level1/10_square", "True"),
    ]
    assert rows[0]["reason"]
    assert float(rows[1]["speedup_low"]) <= float(rows[1]["speedup_high"])
    assert capsys.readouterr().out.count("1 of 2 admitted") == 2


def rows_of(stem: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    out = tmp_path / "rows.csv"
    monkeypatch.setattr(sys, "argv", [stem, *words.split(), "--commit", "abc", "--out", str(out)])
    importlib.import_module(stem).main()
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_reference_in_float64_is_timed_with_cudnn_and_without(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "level9", tmp_path / "rows.csv"
    folder.mkdir()
    head = "import torch\nModel = torch.nn.LazyLinear\ndef get_init_inputs():\n    return [2]\ndef get_inputs():\n    "
    (folder / "1_right.py").write_text(head + "return [torch.rand(3, 4)]\n")
    (folder / "2_fails.py").write_text(head + "return [torch.rand(3), 1]\n")
    monkeypatch.setattr(sys, "argv", ["bench_oracle", str(folder), "--device", device, "--out", str(out)])
    importlib.import_module("bench_oracle").main()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    forms = [("float32", "True"), ("float64", "True"), ("float64", "False")]
    assert [(row["dtype"], row["cudnn"]) for row in rows] == forms * 2
    assert all(float(row["ms"]) > 0 and not row["failure"] for row in rows[:3])
    assert all(not row["ms"] and row["failure"].startswith("TypeError") for row in rows[3:])


@pytest.mark.parametrize("stem", ["bench_admission", "bench_oracle"])
def test_folder_without_references_is_named(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "rows.csv"
    monkeypatch.setattr(sys, "argv", [stem, str(tmp_path / "none"), "--device", "cpu", "--out", str(out)])
    with pytest.raises(SystemExit, match=r"each folder must have references, \*\.py files; got .*/none"):
        importlib.import_module(stem).main()


@pytest.mark.parametrize("options", ["", "--lora"])
def test_every_implementation_of_an_update_has_the_same_gradient_norm(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = f"--device cpu --runs 1 --rivals eager {options}"
    rows = rows_of("bench_step", words, tmp_path, monkeypatch)
    assert not [row["failure"] for row in rows if row.get("failure")]
    for work, count in (("dense", 4), ("realistic", 6)):
        norms = [float(row["grad_norm"]) for row in rows if row["work"] == work]
        assert len(norms) == count
        assert norms == pytest.approx([norms[0]] * count, rel=0.01)
    assert {row["implementation"] for row in rows if row["kind"] == "rival"} == {"torch eager"}


def test_every_way_of_sampling_gives_complete_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("bench_rollout", "--device cpu --runs 1", tmp_path, monkeypatch)
    assert not [row["failure"] for row in rows if row.get("failure")]
    for row in rows:
        assert row["ending"] == "True" or row["answer_tokens"] == str(16 * 24)
        assert row["kind"] == "rival" or float(row["mismatch"]) < 0.01
    assert {row["kind"] for row in rows} == {"ours", "rival"}


def test_judge_gpu_script_continues_after_failures_and_starts_no_step_too_late(tmp_path: Path) -> None:
    """A stub takes the place of Python."""
    stub = tmp_path / "python"
    stub.write_text(
        '#!/usr/bin/env bash\necho "$@" >>"$ASKED"\n'
        'case "$*" in *thousand*) sleep 3 ;; *admission*) exit 1 ;; *corpus.py*) sleep 60 ;; esac\n'
    )
    stub.chmod(0o755)
    asked, log = tmp_path / "asked", tmp_path / "elsewhere.log"

    def run(seconds: int, out: str, *steps: str) -> tuple[int, list[str]]:
        added = {"OUT": str(tmp_path / out), "PYTHON": str(stub), "ASKED": str(asked), "THOUSAND": str(log)}
        done = subprocess.run(
            [str(BENCHMARKS / "judge" / "judge_gpu.sh"), *steps],
            env=os.environ | added | {"FOR": str(seconds), "LEVELS": "one two"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("== ")]

    code, said = run(5, "first", "thousand", "admission", "tests", "corpus:1/2", "tests")
    assert code == 1
    assert [line.rpartition(" after ")[0] or line for line in said] == [
        "== admission: exit 1",
        "== tests: exit 0",
        "== corpus1: exit 124",
        "== tests: not begun",
    ]
    assert run(30, "second", "thousand", "await") == (0, [f"== thousand: {log.read_text().splitlines()[-1]}"])
    assert (tmp_path / "second" / "thousand.log").read_text() == log.read_text()
    assert [line for line in asked.read_text().splitlines() if "thousand" in line] == [
        "-m pytest -q -rA tests/judge/test_corpus.py -k thousand"
    ]
    assert run(5, "third", "nothing")[0] == 2
