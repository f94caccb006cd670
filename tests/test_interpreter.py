"""If the installed Triton's interpreter fails with this numpy, every user of it says so before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_coder import env, interpreter
from kernel_coder.data.__main__ import main as data
from kernel_coder.data.verifiers import InterpreterVerifier
from kernel_coder.interpreter import interpreter_problem
from kernel_coder.judge import Judge, Outcome
from kernel_coder.tasks.build_pairs import main as build_pairs
from kernel_coder.tasks.verify import verify

SAID = (
    "Triton 3.6.0's interpreter fails with numpy 2.5.0. Install one that fits: pip install 'triton>=3.7' or 'numpy<2.4'"
)
SOLUTION = "import triton\nclass ModelNew:\n    pass\n"


@pytest.fixture
def unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_installed", {"triton": "3.6.0", "numpy": "2.5.0"}.get)


@pytest.mark.parametrize(
    ("triton", "numpy", "fits"),
    [
        ("3.6.0", "2.5.0", False),
        ("3.6.0+git1234", "2.4.0rc1", False),
        ("3.6.0", "2.3.5", True),
        ("3.7.0", "2.4.6", True),
        ("3.10.0", "2.10.0", True),
        ("4.0.0", "3.0.0", True),
        (None, "2.5.0", True),  # a missing Triton is reported elsewhere
    ],
)
def test_interpreter_problem_knows_which_versions_fit(triton: str | None, numpy: str | None, fits: bool) -> None:
    assert (interpreter_problem(triton, numpy) is None) == fits


def test_installed_versions_fit() -> None:
    interpreter.require_interpreter()


@pytest.mark.usefixtures("unfit")
def test_judge_for_triton_on_the_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="interpreter fails with numpy") as refused:
        Judge("cpu", "triton")
    assert str(refused.value) == SAID


@pytest.mark.usefixtures("unfit")
def test_judge_of_another_backend_gives_harness_failed_to_a_triton_candidate() -> None:
    with Judge("cpu", "torch") as judge:
        verdict = judge.evaluate("import torch", SOLUTION, backend="triton")
    assert (verdict.outcome, verdict.reason) == (Outcome.HARNESS_FAILED, SAID)


@pytest.mark.usefixtures("unfit")
def test_data_commands_that_need_the_interpreter_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="interpreter fails"):
        InterpreterVerifier()
    with pytest.raises(ValueError, match="interpreter fails"):
        verify([])
    for verifier in ("interpreter", "judge"):
        assert data(["build", "--count", "1", "--out", str(tmp_path / "p.parquet"), "--verifier", verifier]) == 2
        assert capsys.readouterr().err.strip().splitlines()[-1] == f"error: {SAID}"
    assert list(tmp_path.iterdir()) == []
    assert build_pairs(["--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip() == SAID


def test_environment_report_names_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.collect()["triton interpreter"] == "works with this numpy"
    monkeypatch.setattr(env, "_version", {"triton": "3.6.0", "numpy": "2.5.0"}.get)
    assert env.collect()["triton interpreter"] == SAID
