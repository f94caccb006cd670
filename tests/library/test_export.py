"""An exported kernel: imported by a plain script, as an op, with gradients, compiled, tuned, and its fallback."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kernel_coder.library import Library
from kernel_coder.library.__main__ import main
from kernel_coder.library.export import export
from verified import RELU, RELU_KERNEL, SCALE, SCALE_KERNEL, made_task, verdict_on

SCRIPT = """
import warnings
import torch
from relu_mul_kernel import Kernel, exported, reference

torch.manual_seed(0)
inputs = reference.get_inputs()
expected = reference.Model()(*inputs)
module = Kernel()
with warnings.catch_warnings():
    warnings.simplefilter("error")
    torch.testing.assert_close(module(*inputs), expected)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(*inputs), expected)
assert "kernel_coder" not in __import__("sys").modules
(settings,) = exported._read_cache(exported._cache_file("relu_mul_kernel")).values()
assert settings["relu_mul"]["BLOCK_SIZE"] > 32, settings  # the interpreter is faster with larger blocks
for given in ([torch.randn(3, 40), torch.randn(3, 40)], [one.double() for one in inputs]):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.testing.assert_close(module(*given), reference.Model()(*given))
    print(len(seen), *[str(one.message) for one in seen])
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two exported kernels, which were verified by the interpreter."""
    folder = tmp_path_factory.mktemp("exported")
    with Library(":memory:") as library:
        for task, source in (
            (made_task(), RELU_KERNEL),
            (made_task("scale", SCALE, "Scale"), SCALE_KERNEL),
        ):
            library.add(task, source, verdict_on(source, task))
        for entry in library.search():
            export(entry, folder)
    return folder


def plain(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the folder, without Kernel Coder on its path."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KERNEL_CODER_TUNE")}
    given = {**known, "KERNEL_CODER_CACHE": str(folder / "cache"), **environment}
    return subprocess.run([sys.executable, *command], cwd=folder, env=given, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.slow
def test_a_plain_script_uses_the_kernel_and_falls_back_with_one_warning(exported: Path) -> None:
    (exported / "script.py").write_text(SCRIPT)
    done = plain(exported, "script.py", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("1 relu_mul_kernel runs its PyTorch reference instead of its kernel: it was verified for")
    assert second == "0"  # one warning, not one for each call


@pytest.mark.long
@pytest.mark.slow
def test_exported_tests_pass(exported: Path) -> None:
    done = plain(exported, "-m", "pytest", "-q", "relu_mul_kernel", "scale_kernel", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-4000:]
    assert "14 passed" in done.stdout


@pytest.mark.long
def test_exported_tests_fail_if_a_source_was_changed(exported: Path, tmp_path: Path) -> None:
    with Library(":memory:") as library:
        library.add(made_task(), RELU_KERNEL, verdict_on(RELU_KERNEL, made_task()))
        folder = export(library.search()[0], tmp_path, "changed")
    (folder / "kernel.py").write_text(RELU_KERNEL.replace("* y", "+ y"))
    done = plain(tmp_path, "-m", "pytest", "-q", "changed", "-k", "sources or results", TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "4 failed" in done.stdout


def imported(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("KERNEL_CODER_CACHE", str(folder / "cache"))
    return importlib.import_module(name)


def test_kernel_without_interpreter_or_on_another_device_falls_back_to_its_reference(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = imported(exported, "scale_kernel", monkeypatch)
    module = package.Kernel()
    assert [*module.state_dict()] == ["weight"]
    inputs = package.reference.get_inputs()
    expected = package.reference.Scale(16, factor=3.0)
    expected.load_state_dict(module.state_dict())
    with pytest.warns(RuntimeWarning, match="set TRITON_INTERPRET=1"):
        found = module(*inputs)
    torch.testing.assert_close(found, expected(*inputs))
    grads = [
        torch.autograd.grad(one[0].sum(), list(one_of.parameters()))[0]
        for one, one_of in ((found, module), (expected(*inputs), expected))
    ]
    torch.testing.assert_close(*grads)
    facts: dict[str, Any] = {"interpreted": False, "device": "NVIDIA H200"}
    reason = package.exported._device_problem(facts, torch.device("cpu"))
    assert reason == "it was verified on NVIDIA H200, not on cpu"
    with pytest.warns(RuntimeWarning, match="these arguments"):
        module(inputs[0], power=2)


def test_a_batch_of_another_size_can_be_allowed(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    package = imported(exported, "relu_mul_kernel", monkeypatch)
    module = package.Kernel()
    wide, long = [torch.randn(8, 41)] * 2, [torch.randn(9, 40)] * 2
    assert module.problem(package.reference.get_inputs()) is None
    assert all(module.problem(given)[0] == "shape" for given in (wide, long))
    module.any_batch = True
    assert module.problem(long) is None
    assert module.problem(wide)[0] == "shape"


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "library.sqlite"
    task = replace(made_task(), id='x"""\nimport os')
    with Library(path) as library:
        library.add(task, RELU_KERNEL, verdict_on(RELU_KERNEL, task))
    flags = ["export", "1", "--library", str(path), "--out", str(tmp_path)]
    assert main([*flags, "--name", "a-b"]) == 2
    assert "must be a lower-case Python identifier; got 'a-b'" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    assert main([*flags, "--name", "mine"]) == 2
    assert main(flags) == 0
    compile((tmp_path / "x_import_os_kernel" / "__init__.py").read_text(), "init", "exec")
    assert json.loads((tmp_path / "x_import_os_kernel" / "verdict.json").read_text())["outcome"] == "correct"
    assert (tmp_path / "x_import_os_kernel" / "reference.py").read_text() == RELU
