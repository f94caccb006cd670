"""Modules that Triton builds in every process are built once for all Runners. A Runner can begin without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_coder.judge.runner.triton_cache import ARGUMENTS, VARIABLE, TritonCache, copy_modules, source_of

BUILD = (
    "import os; d = os.environ['TRITON_CACHE_DIR'] + '/{key}'; os.makedirs(d, 0o700); "
    "open(d + '/a.so', 'w').write('{text}')"
)


def program(key: str, text: str) -> str:
    return BUILD.format(key=key, text=text)


def test_runner_begins_with_a_copy_of_the_built_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = TritonCache({"LANG": "C"}, [program("key", "x")])
    try:
        assert built.wait()
        monkeypatch.setenv(VARIABLE, built.folder)
        cache = tmp_path / "cache"
        assert copy_modules(str(cache))
        assert (cache / "key" / "a.so").read_text() == "x"
        (cache / "key" / "a.so").write_text("mine")
        made = Path(built.folder, "cache", "key", "a.so")
        assert made.read_text() == "x"
        assert made.stat().st_mode & 0o777 == 0o644
        assert made.parent.stat().st_mode & 0o777 == 0o755
    finally:
        built.close()
    assert not os.path.exists(built.folder)


def test_later_program_adds_modules_and_replaces_none(tmp_path: Path) -> None:
    built = TritonCache({}, [program("key", "first"), program("key", "second"), program("other", "third")])
    try:
        assert built.wait()
        cache = Path(built.folder, "cache")
        assert {one.name: (one / "a.so").read_text() for one in cache.iterdir()} == {"key": "first", "other": "third"}
    finally:
        built.close()


def test_program_that_fails_keeps_the_modules_that_were_built_before(tmp_path: Path) -> None:
    built = TritonCache({}, [program("key", "x"), "raise SystemExit('no GPU')", program("other", "x")])
    try:
        assert built.wait()
        assert os.listdir(Path(built.folder, "cache")) == ["key"]
    finally:
        built.close()


def test_runner_begins_with_an_empty_cache_if_nothing_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not copy_modules(str(tmp_path / "a"))
    built = TritonCache({}, ["raise SystemExit('no GPU')"])
    assert not built.wait()
    monkeypatch.setenv(VARIABLE, built.folder)
    assert not copy_modules(str(tmp_path / "b"))
    built.close()
    assert not list(tmp_path.iterdir())


def test_closing_the_cache_ends_a_build_that_hangs() -> None:
    built = TritonCache({}, ["import time; time.sleep(600)"])
    built.close()
    assert not os.path.exists(built.folder)


def test_every_list_of_arguments_gives_a_kernel_that_compiles(tmp_path: Path) -> None:
    """The kernels compile in a process of their own, because the tests' process may interpret kernels."""
    pytest.importorskip("triton", reason="Triton is not installed on this system")
    code = (
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource\n"
        "import triton\n"
        "from kernel_coder.judge.runner.triton_cache import ARGUMENTS, TARGET, _module, source_of\n"
        "types = {'p': '*fp32', 'i': 'i32', 'f': 'fp32', 'c': 'constexpr'}\n"
        "for one in ARGUMENTS:\n"
        "    kernel = _module(source_of(one)).kernel\n"
        "    signature = {f'a{i}': types[kind] for i, kind in enumerate(one)}\n"
        "    constants = {(i,): 32 for i, kind in enumerate(one) if kind == 'c'}\n"
        "    triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget(*TARGET))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(set(ARGUMENTS)) == len(ARGUMENTS)
    assert "a0: tl.constexpr" not in source_of("ppic")


@pytest.mark.parametrize("interpreted", [False, True])
def test_warm_parent_starts_no_thread_and_does_not_initialize_cuda(interpreted: bool) -> None:
    code = (
        "import os, torch, triton, triton.language, triton.compiler.compiler\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "import kernel_coder.judge.runner.warm_triton\n"
        "assert len(os.listdir('/proc/self/task')) == before\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'TRITON_CACHE_DIR' not in os.environ\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON")}
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_warm_parent_has_imported_all_of_triton_that_an_interpreted_kernel_needs() -> None:
    code = (
        "import sys, torch, triton, triton.language, triton.runtime.interpreter, triton.compiler.compiler\n"
        "import kernel_coder.judge.runner.warm_triton\n"
        "from kernel_coder.judge.runner.triton_cache import _module, source_of\n"
        "kernel = _module(source_of('ppic')).kernel\n"
        "before = set(sys.modules)\n"
        "kernel[(1,)](torch.zeros(16), torch.ones(16), 1, 32)\n"
        "new = sorted(name for name in set(sys.modules) - before if name.startswith('triton'))\n"
        "assert not new, new\n"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
