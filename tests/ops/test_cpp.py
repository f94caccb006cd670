"""Runs the C++ tests in tests/cpp/. They cover code that no op reaches from Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = {
    "device_facts_test": ("tests/cpp/device_facts_test.cpp",),
    "seccomp_test": ("tests/cpp/seccomp_test.cpp", "csrc/sandbox/seccomp.cpp"),
    "spawn_test": (
        "tests/cpp/spawn_test.cpp",
        *(f"csrc/sandbox/{part}.cpp" for part in ("spawn", "seccomp", "landlock", "channel")),
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of parts of Linux")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_cpp_tests_passes(name: str, tmp_path: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / name
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
    command = [compiler, "-std=c++17", "-O1", *warnings, "-Icsrc", *PROGRAMS[name], "-o", str(program), "-pthread"]
    subprocess.run(command, check=True, cwd=ROOT, timeout=240)
    result = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
