"""Opening a judge: packages in other folders, the probe, and what dead judges left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import kernel_coder
import pytest
import torch
from kernel_coder import _core
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.judge.sandbox import leftovers
from kernel_coder.judge.sandbox.cgroups import CgroupParents, find_parents, make_cgroup
from kernel_coder.judge.sandbox.config import SandboxConfig
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.supervisor.slot import Slot

SOURCES = str(Path(kernel_coder.__file__).parents[1])
PACKAGES = str(Path(torch.__file__).parents[1])

JUDGES = """
import sys, torch
from kernel_coder.judge import Judge, JudgeConfig
from kernel_coder.judge.supervisor.judge import PROBE, TRITON_PROBE
assert not torch.__file__.startswith((sys.prefix + "/", sys.base_prefix + "/")), torch.__file__
with Judge("cpu", "triton", config=JudgeConfig(workers=1, checks=1, timing=False)) as judge:
    print(judge.evaluate(PROBE, TRITON_PROBE).outcome.value)
"""


def linked_package(folder: Path) -> Path:
    """A folder to import kernel_coder from. An editable installation keeps its sources and libraries in two places."""
    package = folder / "kernel_coder"
    package.mkdir(parents=True)
    for place in {Path(kernel_coder.__file__).parent, Path(_core.CPU_LIBRARY).parent}:
        for entry in place.iterdir():
            if not (package / entry.name).exists():
                (package / entry.name).symlink_to(entry)
    return folder


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("how", ["pth", "PYTHONPATH"])
def test_torch_may_lie_outside_of_the_interpreters_folders(how: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folders = [PACKAGES, str(linked_package(tmp_path / "sources"))]
    if how == "pth":
        (packages,) = (tmp_path / "other").glob("lib/python3*/site-packages")
        (packages / "elsewhere.pth").write_text("\n".join([*folders, ""]))
    else:
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    told = subprocess.run(
        [tmp_path / "other/bin/python", "-c", JUDGES], capture_output=True, text=True, env=environment, timeout=200
    )
    assert (told.stdout.strip(), told.returncode) == ("correct", 0), told.stderr[-2000:]


@pytest.mark.slow
def test_judge_that_fails_its_probe_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Any] = []

    def fails(slot: Slot, evaluation: Any) -> Any:
        tries.append(evaluation)
        raise SandboxError("the disk is full")

    monkeypatch.setattr(Slot, "examine", fails)
    judge = Judge("cpu", "torch", config=JudgeConfig(workers=1))
    with pytest.raises(SandboxError, match="not even the simplest of tasks: the disk is full"):
        judge.__enter__()
    assert len(tries) == 2
    with pytest.raises(ValueError, match="the judge is closed"):
        judge.evaluate("class Model: ...", "class ModelNew: ...")


def test_folders_of_dead_supervisors_are_swept_and_others_stay(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from kernel_coder.judge.sandbox.leftovers import make_folder\n"
        "path, fd = make_folder(sys.argv[1])\n"
        "open(path + '/file', 'w').write('x')\n"
        "print(path, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert other.stdout is not None
    left = Path(other.stdout.readline().strip())
    (tmp_path / "kernel_coder-notes").mkdir()
    own, fd = leftovers.make_folder(str(tmp_path))
    assert leftovers._sweep_folders(tmp_path) == 0, "all are in use"
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert leftovers._sweep_folders(tmp_path) == 0, "the folder is younger than a minute"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers, "MIN_AGE_S", 0.0)
        assert leftovers._sweep_folders(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["kernel_coder-notes", Path(own).name])
    assert not left.exists()
    os.close(fd)


def test_the_groups_of_dead_supervisors_are_swept() -> None:
    parents = find_parents(None)
    if not isinstance(parents, CgroupParents):
        pytest.skip(f"no control groups: {parents}")
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = make_cgroup(parents, memory_bytes=None, processes=None)
    left = {parents.memory / f"kernel_coder-{ended.pid}-7", parents.pids / f"kernel_coder-{ended.pid}-7"}
    try:
        for path in left:
            path.mkdir()
        leftovers.sweep(SandboxConfig())
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in mine.directories)
    finally:
        mine.remove()


@pytest.mark.long
@pytest.mark.slow
def test_a_judge_that_is_never_closed_is_closed_at_exit() -> None:
    program = JUDGES.replace("with Judge", "judge = Judge").replace(") as judge:\n    print", ")\nprint")
    program = "\n".join(line for line in program.splitlines() if not line.startswith("assert"))
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # a Runner is another user, and its work directory is in this folder
        told = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCES, "TMPDIR": folder},
            timeout=200,
        )
        assert (told.stdout.strip(), told.returncode) == ("correct", 0), told.stderr[-2000:]
        assert list(Path(folder).glob("kernel_coder-*")) == []


def test_a_lock_is_held_as_long_as_a_work_folder_is_in_use(tmp_path: Path) -> None:
    path, held = leftovers.make_folder(str(tmp_path))
    again = os.open(path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)
    assert time.time() - os.stat(path).st_ctime < leftovers.MIN_AGE_S
