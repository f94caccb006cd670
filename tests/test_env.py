from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_coder import _C, _core, env


def test_report_names_versions_and_loaded_parts() -> None:
    report = env.collect()
    assert report["torch"].startswith(torch.__version__.split("+")[0])
    assert report["core"].startswith("loaded")
    assert report["cpu ops"] == "loaded"


def test_report_says_how_to_install_missing_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(env, "_version", lambda package: None)
    monkeypatch.setattr(_core, "CUDA_LIBRARY", Path("/nowhere/libkernel_coder_cuda.so"))
    report = env.collect()
    assert report["nvcc"].startswith("missing; only needed to build the CUDA ops")
    assert report["transformers"] == "missing; pip install 'kernel-coder[train]'"
    assert "make cuda" in report["cuda ops"]


def test_report_as_json_is_one_object() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "kernel_coder.env", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(printed.stdout)["cpu ops"] == "loaded"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here: the CUDA library is not built")
def test_cuda_library_is_built_if_nvcc_is_installed() -> None:
    assert _core.CUDA_LIBRARY.exists()
    assert _C.build_info()["cuda_architectures"]


@pytest.mark.parametrize("version", ["2.10.0", "2.4.1+cu121", "1.13.1"])
def test_older_torch_is_refused_in_one_sentence(version: str) -> None:
    problem = _core.torch_problem(version)
    assert problem == f"kernel_coder needs torch 2.11 or newer; found {version}. Upgrade it: pip install -U torch"


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.0a0+git1234", "3.0.0"])
def test_newer_torch_is_accepted(version: str) -> None:
    assert _core.torch_problem(version) is None


def test_import_under_an_older_torch_fails_with_one_sentence() -> None:
    code = "import torch; torch.__version__ = '2.10.0'; import kernel_coder"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert (
        run.stderr.strip()
        .splitlines()[-1]
        .startswith("ImportError: kernel_coder needs torch 2.11 or newer; found 2.10")
    )


def test_every_op_is_an_attribute_of_the_one_module() -> None:
    assert _C.group_advantages is torch.ops.kernel_coder.group_advantages
