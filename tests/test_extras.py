"""Commands in an installation without extras: help and mistakes work, and what is missing is named with its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
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
import contextlib, io, json
from kernel_coder import cli
results = []
for arguments in json.loads(sys.argv[1]):
    code, said = 0, io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = cli.main(arguments)
        except SystemExit as ended:
            code = ended.code
    results.append((code, said.getvalue()))
print(json.dumps(results))
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


def run(folder: Path, *commands: Sequence[str]) -> list[tuple[int, str]]:
    """Run commands without the packages of the extras, in one process. Return exit codes and what went to stderr."""
    environment = {**os.environ, "PYTHONPATH": str(Path(kernel_coder.__file__).parents[1])}
    program = [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps(commands)]
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(code or 0, said) for code, said in json.loads(done.stdout)]


@pytest.mark.slow
def test_error_names_the_missing_packages(tmp_path: Path) -> None:
    expected = [
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
    ]
    (tmp_path / "task.py").write_text(TASK)
    found = run(tmp_path, *(command for command, _ in expected))
    for (command, sentence), (code, said) in zip(expected, found, strict=True):
        error = said.splitlines()[-1]
        assert (code, error.startswith("error: ")) == (2, True), (command, said)
        assert sentence in error, command
        assert "pip install " in error, command
        assert "Traceback" not in said, command


def test_help_needs_no_extra(tmp_path: Path) -> None:
    names = ["train", "sft", "evaluate", "refine", "judge", "report", "serve", "env", "data"]
    assert [code for code, _ in run(tmp_path, *([name, "--help"] for name in names))] == [0] * len(names)


@pytest.mark.slow
def test_a_report_needs_no_extra(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step":1,"reward":0.5}\n')
    (tmp_path / "run" / "config.yaml").write_text("rollout: {}\n")
    ((code, said),) = run(tmp_path, ["report", "run", "--no-plots"])
    assert code == 0, said
    assert (tmp_path / "run" / "report.html").exists()


def test_error_uses_the_singular_for_one_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "train", ("torch", "no_such_package"))
    with pytest.raises(UsageError, match=r"x needs the package no_such_package, .*kernel-coder\[train\]'"):
        require_extra("train", "x")
