"""Files in the current folder are never imported by a command, whatever their names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kernel_coder
import pytest

PLANTED = ("cuda", "triton", "torch", "numpy", "json", "yaml", "transformers")
"""Names of modules that a trusted process imports, now or later."""

TASK = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(4, 4) - 0.5]


def get_init_inputs():
    return []
"""

CANDIDATE = """import torch
import triton
import triton.language as tl


@triton.jit
def relu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n), 0.0), mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a task, a candidate, and files that leave a trace when they are imported."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(
            f"import os\nopen(os.path.join({str(tmp_path)!r}, 'imported'), 'a').write({name!r})\n"
            "raise SystemExit('a planted file was imported')\n"
        )
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "candidate.py").write_text(CANDIDATE)
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(kernel_coder.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        ["-m", "kernel_coder.judge"],
        pytest.param(["-W", "default", "-m", "kernel_coder.cli", "judge"], marks=pytest.mark.long),
    ],
)
def test_the_judge_imports_nothing_from_the_current_folder(folder: Path, start: list[str]) -> None:
    done = run(folder, *start, "task.py", "candidate.py", "--device", "cpu", "--checks", "2")
    assert not (folder / "imported").exists()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("correct: task")


COMMANDS = ("sft", "evaluate", "refine", "report", "env", "serve", "data")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["train", *(pytest.param(name, marks=pytest.mark.long) for name in COMMANDS)],
)
def test_no_command_imports_from_the_current_folder(folder: Path, command: str) -> None:
    done = run(folder, "-m", f"kernel_coder.{command}", "--help")
    assert not (folder / "imported").exists()
    assert done.returncode == 0, done.stderr


def test_other_programs_can_still_import_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import kernel_coder\n")
    (tmp_path / "mine" / "__main__.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text("print('found')\n")
    assert run(tmp_path, "-m", "mine").stdout == "found\n"
