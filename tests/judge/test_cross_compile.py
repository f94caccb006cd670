"""Kernels are compiled for a GPU that this machine does not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_coder.judge.config import capability

pytest.importorskip("triton")

PROGRAM = """
import json, sys, torch, triton
import triton.language as tl
from triton.runtime.driver import driver
from kernel_coder.judge.runner import cross_compile
@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0)))

@triton.jit
def odd(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)

x, out = torch.rand(512), torch.zeros(())
def calls():
    total[(1,)](x, out, 512, BLOCK=512)
    torch.zeros(3)[int(out.item()) + 7]  # depends on a result that was not computed

def said(calls):
    try:
        return [str(fact) for fact in cross_compile.compile_kernels(calls, "sm_90")]
    except Exception as error:
        return f"{type(error).__name__}: {error}"

before = driver._active
found = [said(calls), said(lambda: odd[(1,)](x, BLOCK=48)), said(lambda: None), said(lambda: 1 / 0)]
cross_compile.SHARED_BYTES[90] = 0
found.append(said(calls))
print(json.dumps([*found, float(out), driver._active is before]))
"""


def test_kernels_compile_and_are_not_launched(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "program.py")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    right, odd, nothing, unrelated, too_large, out, restored = json.loads(ended.stdout)
    assert len(right) == 1
    assert right[0].startswith("total: ")
    assert "bytes of shared memory, 128 threads" in right[0]
    assert "power of 2" in odd
    assert nothing == "RuntimeError: no Triton kernel was launched"
    assert unrelated == "ZeroDivisionError: division by zero"
    assert "bytes of shared memory; sm_90 has 0 a block" in too_large
    assert out == 0
    assert restored


@pytest.mark.parametrize("name", ["hopper", "sm_91", "90", "sm_90b"])
def test_unknown_name_of_an_architecture_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"must be one of sm_70, .*got"):
        capability(name)
