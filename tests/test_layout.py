"""Rules for the source tree, so that no reviewer has to check them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OP_CONTRACTS = sorted(
    path for path in (ROOT / "csrc/ops").glob("*.h") if (path.with_name(f"{path.stem}_torch.cpp")).exists()
)


@pytest.mark.parametrize("stem", [path.stem for path in OP_CONTRACTS])
def test_every_op_has_the_same_file_stem_everywhere(stem: str) -> None:
    for path in (
        f"python/kernel_coder/ops/{stem}.py",
        f"python/kernel_coder/reference/{stem}.py",
        f"tests/ops/test_{stem}.py",
    ):
        assert (ROOT / path).exists(), f"csrc/ops/{stem}.h has no {path}"


def test_kernel_files_include_no_torch_header() -> None:
    for path in (ROOT / "csrc/ops").iterdir():
        if path.stem.endswith("_torch") or path.name == "schemas.cpp":
            continue
        assert not re.search(r"#include <(torch|ATen|c10)", path.read_text()), f"{path.name} includes a torch header"


def test_only_the_stable_abi_is_used() -> None:
    for path in (ROOT / "csrc").rglob("*"):
        if path.is_file():
            assert not re.search(r"#include <(torch/extension\.h|torch/torch\.h|ATen/|c10/)", path.read_text()), (
                path.name
            )


def test_versions_of_the_package_and_the_project_are_equal() -> None:
    package = re.search(r'__version__ = "(.+)"', (ROOT / "python/kernel_coder/__init__.py").read_text())
    project = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert package is not None
    assert project is not None
    assert package[1] == project[1]
