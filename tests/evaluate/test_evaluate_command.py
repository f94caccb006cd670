"""The command as a user runs it: real judge, real files, on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, completion
from kernel_coder.evaluate.__main__ import main
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.sandbox.profile import SandboxProfile
from pretend import PretendJudge, said, write_tasks

TRITON = """
import torch
from torch import nn
import triton
import triton.language as tl


@triton.jit
def scaled_relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.maximum(x, 0.0) * {scale}, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        scaled_relu[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out
"""


def by_task(number: int, body: dict[str, Any]) -> Reply:
    """Right for task 1, wrong for task 2, a kernel that does not compile for task 3, and no code for task 4."""
    asked = body["messages"][-1]["content"]
    scale = next(n for n in range(1, 5) if f"torch.relu(x) * {n}" in asked)
    if scale == 4:
        return completion("I cannot do that.")
    code = TRITON.format(scale=scale if scale != 2 else 7)
    return completion(f"Here:\n```python\n{code.replace('tl.load', 'tl.lode') if scale == 3 else code}\n```")


def flags(tasks: Path, out: Path, **changes: Any) -> list[str]:
    values = {"model": "m", "tasks": tasks, "output": out, "device": "cpu", "judge.workers": 1, **changes}
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


def test_triton_kernels_from_a_server_are_judged_by_the_real_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, out = write_tasks(tmp_path / "tasks", count=4), tmp_path / "out"
    with chat_server(by_task) as server:
        assert main(flags(tasks, out, base_url=server.url)) == 0
    printed = capsys.readouterr().out
    found = summary(out)
    outcomes = [list(row["outcomes"]) for row in found["by_task"]]
    assert outcomes[0] == ["correct"], (out / "verdicts.jsonl").read_text()
    assert outcomes[1] == ["wrong_output"]
    assert outcomes[2][0] in ("compile_error", "runtime_error")
    assert outcomes[3] == ["format_error"]
    assert found["metrics"]["correct"]["value"] == 0.25
    assert found["metrics"]["fast_p"]["eager"]["1"]["value"] is None
    assert found["interpreted"] is True
    assert (out / "table.md").read_text() in printed
    assert "| correct | 25.0%" in printed
    assert printed.splitlines()[-2:] == [
        f"open {(out / 'report.html').resolve()} in a browser to read the answers and verdicts",
        "next: kernel-coder refine MODULE.py --model m",
    ]
    page = (out / "report.html").read_text()
    assert "tl.lode" in page
    assert "kernels were run by an interpreter" in page


def test_a_local_model_is_evaluated_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, out = write_tasks(tmp_path / "tasks", count=2), tmp_path / "out"
    arguments = flags(tasks, out, model="tiny", samples=2, max_new_tokens=8, num_threads=1)
    arguments += ["--prompt-template", str(Path(__file__).with_name("short.jinja"))]
    assert main(arguments) == 0
    first = (out / "samples.jsonl").read_bytes()
    assert summary(out)["metrics"]["samples"] == 4
    assert main([*arguments, "--resume"]) == 0
    assert (out / "samples.jsonl").read_bytes() == first
    assert main(arguments) == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"tasks": "/no/tasks"}, 2, "error: --tasks names no file or folder: /no/tasks"),
        ({"model": "./no/model"}, 2, "error: --model ./no/model is neither a folder nor a hub id"),
        ({"top_p": 7}, 2, "error: top_p: input should be less than or equal to 1; got '7'"),
        (
            {"base_url": "http://127.0.0.1:9/v1", "api_key_env": "NO_SUCH_KEY"},
            2,
            "error: --api-key-env names NO_SUCH_KEY",
        ),
        ({"base_url": "http://127.0.0.1:9/v1", "max_retries": 0}, 75, "continue with --resume"),
    ],
    ids=["tasks", "model", "flag", "key", "server"],
)
def test_every_failure_gives_one_sentence_and_its_exit_code(
    changes: dict[str, Any], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = write_tasks(tmp_path / "tasks", count=1)
    assert main(flags(**{"tasks": tasks, "out": tmp_path / "out", **changes})) == code
    said = capsys.readouterr().err.splitlines()
    assert sentence in said[-1]
    assert sum(line.startswith("error: ") for line in said) == 1


def test_judge_that_fails_on_every_answer_gives_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write_tasks(tmp_path / "tasks", count=2)
    with chat_server(lambda n, body: completion(said("correct", 2.0))) as server:
        judge = PretendJudge(overrule="harness_failed")
        assert main(flags(tasks, tmp_path / "out", base_url=server.url), make_judge=judge) == 3
    assert "error: the judge reached no verdict on any of 2 answers" in capsys.readouterr().err


def test_machine_without_a_safe_sandbox_gives_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SandboxError("untrusted code is not run here")

    monkeypatch.setattr(SandboxProfile, "refuse_below", refuse)
    tasks = write_tasks(tmp_path / "tasks", count=1)
    with chat_server(by_task) as server:
        assert main(flags(tasks, tmp_path / "out", base_url=server.url)) == 3
    assert "error: the judge cannot start on this machine: untrusted code is not run" in capsys.readouterr().err
    assert (tmp_path / "out" / "samples.jsonl").read_text().count("\n") == 1


def test_unknown_sandbox_layer_in_require_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write_tasks(tmp_path / "tasks", count=1)
    with chat_server(by_task) as server:
        arguments = flags(tasks, tmp_path / "out", base_url=server.url)
        assert main([*arguments, "--judge.require", '["no_such_layer"]']) == 2
    assert "error: require names layers that do not exist: ['no_such_layer']" in capsys.readouterr().err


def test_help_shows_common_flags_and_packaged_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    short = capsys.readouterr().out
    for text in ("--model", "--tasks", "--resume", "nano, tiny", "kernelbench, nano", "packaged:heldout,"):
        assert text in short
    assert "--judge.checks" not in short
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kernel-coder ")
    everything = subprocess.run(
        [sys.executable, "-m", "kernel_coder.cli", "evaluate", "--help-all"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert everything.returncode == 0
    for flag in ("--model", "--samples", "--top-p", "--base-url", "--judge.checks", "--resume"):
        assert flag in everything.stdout
