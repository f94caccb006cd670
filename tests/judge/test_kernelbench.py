"""KernelBench's evaluation function on our judge: its parameters, its result, and the attacks from its own tests."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_judge import FakeJudge
from kernel_coder.judge import JudgeConfig, Outcome, OutputError, example_verdict, kernelbench
from kernel_coder.judge.kernelbench import (
    KernelExecResult,
    cached_judge,
    check_metadata_serializable_all_types,
    close_judges,
    eval_kernel_against_ref,
    fastp,
    geometric_mean_speed_ratio_correct_and_faster_only,
    geometric_mean_speed_ratio_correct_only,
    result_of,
)

SIGNATURE = {  # of ScalingIntelligence/KernelBench at 423217d
    "original_model_src": inspect.Parameter.empty,
    "custom_model_src": inspect.Parameter.empty,
    "seed_num": 42,
    "num_correct_trials": 1,
    "num_perf_trials": 10,
    "measure_performance": False,
    "timing_method": "cuda_event",
    "verbose": False,
    "build_dir": None,
    "device": None,
    "backend": "cuda",
    "precision": torch.float32,
    "check_for_excessive_speedup": True,
    "excessive_speedup_threshold": 10,
}

REFERENCE = """import torch


class Model(torch.nn.Module):
    def forward(self, A, B):
        return torch.matmul(A, B)


def get_inputs():
    return [torch.rand(32, 32), torch.rand(32, 32)]


def get_init_inputs():
    return []
"""


def candidate(body: str) -> str:
    return (
        "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, A, B):\n"
        + "".join(f"        {line}\n" for line in body.splitlines())
        + REFERENCE[REFERENCE.index("\n\ndef get_inputs") :]
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeJudge]]:
    close_judges()
    monkeypatch.setattr(kernelbench, "Judge", FakeJudge)
    monkeypatch.setattr(FakeJudge, "made", [])
    yield FakeJudge.made
    close_judges()
    assert not any(judge.is_open for judge in FakeJudge.made)


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    close_judges()


def test_signature_and_result_match_kernelbench() -> None:
    parameters = inspect.signature(eval_kernel_against_ref).parameters
    assert {name: parameters[name].default for name in SIGNATURE} == SIGNATURE
    assert list(parameters)[: len(SIGNATURE)] == list(SIGNATURE)
    assert KernelExecResult().model_dump() == {
        "compiled": False,
        "correctness": False,
        "metadata": {},
        "runtime": -1.0,
        "runtime_stats": {},
        "ref_runtime": -1.0,
        "ref_runtime_stats": {},
    }


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_sets_the_fields_of_kernelbenchs_result(outcome: Outcome, fake: list[FakeJudge]) -> None:
    result = eval_kernel_against_ref(REFERENCE, f"# outcome: {outcome}", device="cpu", backend="triton")
    if outcome is Outcome.HARNESS_FAILED:
        assert result is None
        return
    assert result is not None
    assert result.correctness == (outcome is Outcome.CORRECT)
    assert result.compiled == (outcome not in (Outcome.FORMAT_ERROR, Outcome.COMPILE_ERROR))
    assert result.metadata["device"] == result.metadata["hardware"] == "cpu"
    key = {
        Outcome.CORRECT: "correctness_trials",
        Outcome.FORMAT_ERROR: "compilation_error",
        Outcome.COMPILE_ERROR: "compilation_error",
        Outcome.WRONG_OUTPUT: "correctness_issue",
        Outcome.REJECTED: "rejected",
    }.get(outcome, "runtime_error")
    assert result.metadata[key]
    said = {"correctness_trials", "compilation_error", "correctness_issue", "rejected", "runtime_error"}
    assert said & result.metadata.keys() == {key}
    assert key == "correctness_trials" or key == "rejected" or f"{key}_name" in result.metadata
    assert json.loads(json.dumps(result.model_dump())) == result.model_dump()
    assert check_metadata_serializable_all_types(result.metadata) == result.metadata


def test_parameters_reach_the_judge(fake: list[FakeJudge]) -> None:
    eval_kernel_against_ref(
        REFERENCE,
        "# outcome: correct",
        num_correct_trials=5,
        num_perf_trials=30,
        measure_performance=True,
        timing_method="do_bench",
        build_dir="/no/such/folder",
        device=torch.device("cpu"),
        backend="Triton",
        precision=torch.bfloat16,
        judge_config=JudgeConfig(timeout_s=9, hidden_shapes=True),
    )
    assert fake[0].config == JudgeConfig(checks=5, timed_calls=30, timing=True, timeout_s=9, hidden_shapes=False)
    assert (fake[0].device, fake[0].backend) == ("cpu", "triton")


def test_times_are_rounded_milliseconds_and_excessive_speedup_is_flagged() -> None:
    times = {"runtimes_ms": (1.0, 2.00049, 3.0), "reference_runtimes_ms": (4.0, 4.0)}
    verdict = example_verdict("correct", speedup=12.0, **times)
    result = result_of(verdict, "cuda:0", JudgeConfig(), 10)
    assert result is not None
    assert result.runtime == 2.0
    assert result.ref_runtime == 4.0
    expected = {"mean": 2.0, "std": 0.816, "min": 1.0, "max": 3.0, "num_trials": 3}
    assert result.runtime_stats == {**expected, "hardware": "NVIDIA H200", "device": "cuda:0"}
    assert result.metadata["excessive_speedup"] is True
    assert result.metadata["speedup"] == 12.0
    for threshold in (13.0, float("inf")):
        one = result_of(verdict, "cuda:0", JudgeConfig(), threshold)
        assert one is not None
        assert "excessive_speedup" not in one.metadata
    untimed = result_of(verdict, "cuda:0", JudgeConfig(timing=False))
    assert untimed is not None
    assert (untimed.runtime, untimed.runtime_stats) == (-1.0, {})


def test_rejected_candidate_is_flagged_for_excessive_speedup_if_it_is_timed() -> None:
    """KernelBench's own test of work on another stream expects this flag, whatever speed the judge would measure."""
    for config, threshold, flagged in [
        (JudgeConfig(), 10, True),
        (JudgeConfig(timing=False), 10, False),
        (JudgeConfig(), float("inf"), False),
    ]:
        result = result_of(example_verdict("rejected"), "cuda:0", config, threshold)
        assert result is not None
        assert result.metadata.get("excessive_speedup", False) is flagged


def test_metadata_holds_the_largest_difference_of_every_output() -> None:
    error = OutputError(
        name="output", elements=4, mismatches=1, max_abs_error=0.5, max_rel_error=1.0, relative_error=0.1
    )
    result = result_of(example_verdict("wrong_output", errors=(error,)), "cpu", JudgeConfig())
    assert result is not None
    assert result.metadata["max_difference"] == ["0.500000"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": "tilelang"}, "backend must be one of triton, cuda, cpp, torch; got 'tilelang'"),
        ({"timing_method": "guess"}, "timing_method must be one of cuda_event, do_bench"),
        ({"precision": torch.float64}, "precision must be one of torch.float32"),
        ({"num_correct_trials": 0}, "must be at least 1; got 0, 10"),
        ({"device": "mps"}, "device must be cpu or one of the"),
        ({"device": 99}, "GPUs that torch sees; got 99"),
        ({"backend": "cuda"}, "backend cuda needs a GPU"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(given: dict[str, object], said: str, fake: list[FakeJudge]) -> None:
    with pytest.raises(ValueError, match=said.replace(".", "\\.")):
        eval_kernel_against_ref(REFERENCE, "x", **{"device": "cpu", "backend": "triton", **given})  # type: ignore[arg-type]
    assert fake == []


def test_judges_are_cached_by_settings_and_the_least_recently_used_is_closed(fake: list[FakeJudge]) -> None:
    first = cached_judge("cpu", "triton", JudgeConfig(checks=1))
    for checks in (2, 3, 4):
        cached_judge("cpu", "triton", JudgeConfig(checks=checks))
    assert cached_judge("cpu", "triton", JudgeConfig(checks=1)) is first
    cached_judge("cpu", "triton", JudgeConfig(checks=5))
    assert [judge.is_open for judge in fake] == [True, False, True, True, True]
    close_judges()
    assert not any(judge.is_open for judge in fake)


def test_a_forked_process_has_its_own_judge(fake: list[FakeJudge]) -> None:
    mine = cached_judge("cpu", "triton", JudgeConfig())

    def other() -> None:
        try:
            assert cached_judge("cpu", "triton", JudgeConfig()) is not mine
            assert len(FakeJudge.made) == 2
            os._exit(0)
        finally:
            os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=other)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert mine.is_open  # type: ignore[attr-defined]


# ---- scores --------------------------------------------------------------------------------------------------------


def test_scores_follow_kernelbenchs_formulas() -> None:
    correct, base, actual = [1, 0, 1, 1, 0], [0.1, 0.15, 0.2, 0.05, 0.3], [0.2, 0.15, 0.3, 0.01, 0.2]
    assert fastp(correct, base, actual, 5, 1.0) == 0.2
    assert fastp(correct, base, actual, 5, 0.5) == 0.4
    assert fastp(correct, base, actual, 5, 0.0) == 0.6
    assert fastp([0] * 5, base, actual, 5, 0.0) == fastp([], [], [], 0, 1.0) == 0.0
    exact = (0.5 * 2 / 3 * 5) ** (1 / 3)
    assert geometric_mean_speed_ratio_correct_only(correct, base, actual, 5) == pytest.approx(exact)
    assert geometric_mean_speed_ratio_correct_and_faster_only(correct, base, actual, 5) == pytest.approx(5.0)
    assert geometric_mean_speed_ratio_correct_only([0] * 5, base, actual, 5) == 0
    assert geometric_mean_speed_ratio_correct_only([1] * 999, [1e6] * 999, [1.0] * 999, 999) == pytest.approx(1e6)


# ---- the attacks in KernelBench's tests, on the real judge ---------------------------------------------------------


def evaluated(source: str, backend: str = "torch") -> KernelExecResult:
    result = eval_kernel_against_ref(
        REFERENCE, source, num_correct_trials=5, measure_performance=True, num_perf_trials=10, device="cpu",
        backend=backend,
    )  # fmt: skip
    assert result is not None
    return result


def test_honest_candidate_is_correct() -> None:
    result = evaluated(candidate("return A @ B"))
    assert result.compiled
    assert result.correctness, result.metadata
    assert result.metadata["correctness_trials"] == "(5 / 5)"
    assert len(result.metadata["verdict"]["seeds"]) >= 1


@pytest.mark.parametrize(
    ("attack", "body"),
    [
        ("memory of the reference's result", "return torch.empty(A.shape[0], B.shape[1])"),
        ("inputs zeroed, so that the reference returns zeros", "A.zero_(), B.zero_()\nreturn torch.zeros(32, 32)"),
        ("own result of an earlier call", "self.kept = getattr(self, 'kept', A @ B)\nreturn self.kept"),
        (
            "work that goes on after the return",
            "import threading\nout = torch.empty(32, 32)\n"
            "threading.Timer(0.05, lambda: torch.matmul(A, B, out=out)).start()\nreturn out",
        ),
        ("a guess of the seed", "torch.manual_seed(42)\nreturn torch.rand(32, 32) @ torch.rand(32, 32)"),
    ],
    ids=lambda text: text.split()[0],
)
def test_attacks_are_not_correct(attack: str, body: str) -> None:
    result = evaluated(candidate(body))
    assert result.compiled
    assert not result.correctness, attack
    assert result.runtime == -1.0
    assert "verdict" in result.metadata


def test_metadata_explains_compilation_errors_and_runtime_errors() -> None:
    result = evaluated("import torch\nclass ModelNew(torch.nn.Module:\n    pass")
    assert not result.compiled
    assert "compilation_error" in result.metadata
    result = evaluated(candidate("raise ZeroDivisionError('on purpose')"))
    assert result.compiled
    assert result.metadata["runtime_error_name"] == "ZeroDivisionError"
    assert "on purpose" in result.metadata["runtime_error_traceback"]


def test_reference_with_a_constant_output_is_refused() -> None:
    constant = REFERENCE.replace("torch.matmul(A, B)", "torch.zeros(32, 32)")
    with pytest.raises(ValueError, match="original_model_src cannot be judged against: the task is refused"):
        eval_kernel_against_ref(constant, candidate("return torch.zeros(32, 32)"), device="cpu", backend="torch")


# ---- KernelBench's scripts, unchanged ------------------------------------------------------------------------------


SCRIPT = """
import sys
from kernelbench.eval import KernelExecResult, eval_kernel_against_ref
result = eval_kernel_against_ref(open(sys.argv[1]).read(), open(sys.argv[2]).read(), device="cpu", backend="torch")
print(type(result).__module__, result.correctness)
"""


def test_kernelbench_script_runs_unchanged_on_our_judge(tmp_path: Path) -> None:
    """The run ends only when every process that inherited its output has ended."""
    (tmp_path / "kernelbench").mkdir()
    (tmp_path / "kernelbench" / "__init__.py").write_text("")
    (tmp_path / "kernelbench" / "eval.py").write_text("KernelExecResult = eval_kernel_against_ref = None\n")
    for name, text in {"ref": REFERENCE, "new": candidate("return A @ B"), "script": SCRIPT}.items():
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(Path(kernelbench.__file__).parents[2]), str(tmp_path)])
    ended = subprocess.run(
        [sys.executable, "-m", "kernel_coder.judge.kernelbench", "script.py", "ref.py", "new.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
        check=False,
    )
    assert ended.stdout == "kernel_coder.judge.kernelbench True\n", ended.stderr
    assert ended.returncode == 0


def test_pytest_plugin_replaces_kernelbenchs_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = types.ModuleType("kernelbench.eval")
    monkeypatch.setitem(sys.modules, "kernelbench", types.ModuleType("kernelbench"))
    monkeypatch.setitem(sys.modules, "kernelbench.eval", theirs)
    sys.modules["kernelbench"].eval = theirs  # type: ignore[attr-defined]
    kernelbench.pytest_configure(object())
    assert theirs.eval_kernel_against_ref is eval_kernel_against_ref  # type: ignore[attr-defined]
    assert kernelbench.main([]) == 2
