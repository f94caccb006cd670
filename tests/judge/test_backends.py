"""A candidate must use kernels of its backend, and the feedback says if the candidate is in another language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_coder import interpreter
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.judge.__main__ import main
from kernel_coder.judge.language import looks_like, other_language
from kernel_coder.judge.runner.own_kernels import OwnKernels

TASK = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(8, 8) - 0.5]


def get_init_inputs():
    return []
"""

INLINE = '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
torch::Tensor relu_forward(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i++) to[i] = from[i] > 0 ? from[i] : 0;
  return y;
}
"""
module = load_inline("own_relu", cpp_sources=SOURCE, functions=["relu_forward"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.relu_forward(x)
'''

CUDA = """#include <torch/extension.h>
__global__ void relu(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > 0 ? x[i] : 0;
}
"""

TRITON = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef relu(x, y):\n    pass\n"


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], list[str]]:
    def written(candidate: str) -> list[str]:
        (tmp_path / "task.py").write_text(TASK)
        (tmp_path / "new.py").write_text(candidate)
        return [str(tmp_path / "task.py"), str(tmp_path / "new.py"), "--device", "cpu"]

    return written


@pytest.mark.long
@pytest.mark.parametrize("counted", ["backend", "any"])
def test_cpp_extension_is_rejected_for_triton_unless_kernels_is_any(counted: str) -> None:
    config = JudgeConfig.model_validate({"checks": 2, "kernels": counted, "timeout_s": 300})
    with Judge("cpu", "triton", config=config) as judge:
        verdict = judge.evaluate(TASK, INLINE)
    if counted == "any":
        assert verdict.correct, verdict.reason
    else:
        assert verdict.outcome is Outcome.REJECTED
        assert verdict.reason == ("no kernel of its own: no triton kernel was launched; its code looks like C++")


def test_each_backend_counts_its_own_kinds_of_kernels() -> None:
    counts = {
        backend: (own.counts_triton, own.counts_extensions)
        for backend in ("triton", "cuda", "cpp", "torch", None)
        for own in [OwnKernels(__file__, backend=backend)]
    }
    assert counts == {
        "triton": (True, False),
        "cuda": (False, True),
        "cpp": (False, True),
        "torch": (True, True),
        None: (True, True),
    }


def test_language_of_a_candidate_is_guessed_from_its_source() -> None:
    assert [looks_like(text) for text in (INLINE, CUDA, TRITON, TASK)] == ["cpp", "cuda", "triton", None]
    assert other_language(TRITON, "cpp") == "triton"
    assert other_language(CUDA, "cpp") is None  # both are native sources, and the compiler's message says more
    assert other_language(CUDA, "torch") is None


@pytest.mark.slow
def test_command_suggests_the_backend_that_fits_the_source(
    files: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(files(CUDA)) == 0
    out, err = capsys.readouterr()
    assert out.startswith("compile error: task (triton on cpu, interpreted)\n")
    assert "it looks like CUDA, and Triton is asked for" in out
    assert "hint: this looks like CUDA; use --backend cuda\n" in err
    assert err.splitlines()[-1].startswith("next: ")


@pytest.mark.slow
def test_reference_that_raises_is_reported_as_an_error_of_the_task(
    files: Callable[[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(TASK.replace("class Model", "class ModelNew"))
    (tmp_path / "task.py").write_text(TASK.replace("torch.relu(x)", "torch.no_such(x)"))
    assert main([*arguments, "--backend", "torch"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {tmp_path / 'task.py'} cannot be judged against: the reference cannot be called: ")
    assert main([*arguments, "--backend", "torch", "--json"]) == 2
    assert '"outcome":"harness_failed"' in capsys.readouterr().out.replace('": "', '":"')


def test_command_reports_missing_triton_before_it_judges_anything(
    files: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = interpreter._installed
    monkeypatch.setattr(interpreter, "_installed", lambda name: None if name == "triton" else installed(name))
    assert main(files(TRITON)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: Triton is not installed, and candidates in Triton need it: pip install triton\n"
    with Judge("cpu", "cpp") as judge:
        assert judge.evaluate(TASK, "import torch", "triton").outcome is Outcome.FORMAT_ERROR
