"""The torch-free, Python-free text core, compiled by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = [
    "tests/cpp/text_test.cpp",
    "csrc/text/sequence_similarity.cpp",
    "csrc/text/diagonal_runs.cpp",
    "csrc/text/parse_response.cpp",
]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def links_with_sanitizers(compiler: str, folder: Path) -> bool:
    source = folder / "empty.cpp"
    source.write_text("int main() { return 0; }\n", encoding="utf-8")
    program = folder / "empty"
    compiled = subprocess.run([compiler, *SANITIZERS, str(source), "-o", str(program)], capture_output=True)
    return compiled.returncode == 0 and subprocess.run([str(program)], capture_output=True).returncode == 0


@pytest.mark.long
def test_core_agrees_with_simple_implementations_under_sanitizers(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler is not None, "the suite needs the C++ compiler that has built the package"
    sanitizers = SANITIZERS if links_with_sanitizers(compiler, tmp_path) else []  # some systems lack the libraries
    program = tmp_path / "text_test"
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
    command = [
        compiler,
        "-std=c++17",
        "-O1",
        *warnings,
        *sanitizers,
        "-Icsrc",
        *SOURCES,
        "-o",
        str(program),
        "-pthread",
    ]
    subprocess.run(command, check=True, cwd=ROOT, timeout=240)
    result = subprocess.run([str(program), "500"], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "525 texts compared, 15000 responses parsed\n"
