"""Commands in an installation without extras: help and mistakes work, and what is missing is named with its remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kernel_coder
import pytest
from kernel_coder.run.errors import UsageError
from kernel_coder.run.extras import EXTRAS, require_extra

WITHOUT_EXTRAS = f"""
import importlib.metadata, sys

class Absent:
    names = set({sorted({name for names in EXTRAS.values() for name in names} | {"peft", "gguf", "matplotlib"})!r})

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent())
version = importlib.metadata.version
def known(name):
    if name.replace("-", "_") in Absent.names:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = known
from kernel_coder import cli
sys.exit(cli.main(sys.argv[1:]))
"""

TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.rand(4, 4)]
def get_init_inputs():
    return []
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command without the packages of the extras."""
    environment = {**os.environ, "PYTHONPATH": str(Path(kernel_coder.__file__).parents[1])}
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["train"], "kernel-coder train needs the packages transformers, accelerate"),
        (["sft"], "kernel-coder sft needs the packages transformers, accelerate"),
        (["evaluate", "--model", "nano", "--output", "out"], "a local model needs the packages transformers"),
        (["refine", "task.py", "--device", "cpu"], "Triton is not installed"),
        (["refine", "task.py", "--backend", "torch", "--device", "cpu"], "a local model needs the packages"),
        (
            ["data", "collect", "--out", "c.jsonl", "--count", "1", "--config", "nano"],
            "data collect needs",
        ),
        (["data", "build", "--out", "p.parquet", "--count", "1"], "kernel-coder data build needs the package triton"),
        (["serve"], "kernel-coder serve needs the packages fastapi"),
        (["judge", "task.py", "task.py", "--device", "cpu"], "Triton is not installed, and candidates in Triton need"),
        (["evaluate", "--model", "m", "--base-url", "http://localhost:1/v1", "--output", "out"], "openai"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_what_is_missing_is_named(tmp_path: Path, command: list[str], sentence: str) -> None:
    (tmp_path / "task.py").write_text(TASK)
    done = run(tmp_path, *command)
    error = done.stderr.splitlines()[-1]
    assert (done.returncode, error.startswith("error: ")) == (2, True), done.stderr
    assert sentence in error
    assert "pip install " in error
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("command", ["train", "sft", "evaluate", "refine", "judge", "report", "serve", "env", "data"])
def test_help_needs_no_extra(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, command, "--help")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_report_needs_no_extra(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step":1,"reward":0.5}\n')
    (tmp_path / "run" / "config.yaml").write_text("rollout: {}\n")
    done = run(tmp_path, "report", "run", "--no-plots")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()


def test_the_sentence_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "train", ("torch", "no_such_package"))
    with pytest.raises(UsageError, match=r"x needs the package no_such_package, .*kernel-coder\[train\]'"):
        require_extra("train", "x")
