"""Triton's driver module is built once for all Runners, and a Runner can begin without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kernel_coder.judge.triton_cache import VARIABLE, DriverModule, begin_with_driver_module

BUILD = (
    "import os; d = os.environ['TRITON_CACHE_DIR'] + '/key'; os.makedirs(d, 0o700); open(d + '/a.so', 'w').write('x')"
)


def test_a_runner_begins_with_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = DriverModule({"LANG": "C"}, BUILD)
    try:
        assert module.wait()
        monkeypatch.setenv(VARIABLE, module.folder)
        cache = tmp_path / "cache"
        begin_with_driver_module(str(cache))
        assert (cache / "key" / "a.so").read_text() == "x"
        (cache / "key" / "a.so").write_text("mine")
        made = Path(module.folder, "cache", "key", "a.so")
        assert made.read_text() == "x"
        assert made.stat().st_mode & 0o777 == 0o644
        assert made.parent.stat().st_mode & 0o777 == 0o755
    finally:
        module.close()
    assert not os.path.exists(module.folder)


def test_without_a_module_a_runner_begins_with_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    begin_with_driver_module(str(tmp_path / "a"))
    module = DriverModule({}, "raise SystemExit('no GPU')")
    assert not module.wait()
    monkeypatch.setenv(VARIABLE, module.folder)
    begin_with_driver_module(str(tmp_path / "b"))
    module.close()
    assert not list(tmp_path.iterdir())


def test_a_build_that_hangs_ends_with_the_judge() -> None:
    module = DriverModule({}, "import time; time.sleep(600)")
    module.close()
    assert not os.path.exists(module.folder)
