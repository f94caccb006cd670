"""Removes work directories and control groups that dead Supervisors left behind.

A Supervisor that is killed removes nothing. The next one that starts removes what it finds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from kernel_coder.judge.sandbox.cgroups import CgroupParents, find_parents
from kernel_coder.judge.sandbox.config import SandboxConfig

_FOLDER = re.compile(r"kernel_coder-\d+-[^-]+")
_GROUP = re.compile(r"kernel_coder-(\d+)-\d+")

MIN_AGE_S = 60.0
"""Age, in seconds, below which a folder is never removed. A folder is locked microseconds after it is created."""


def make_folder(root: str | None = None) -> tuple[str, int]:
    """Create a private folder. Return its path and a descriptor. The folder is in use until that is closed.

    The kernel frees the folder's lock at the latest when this process ends, however it ends. So the lock distinguishes
    folders in use from leftovers, also between containers, where process ids are not unique.

    Args:
        root: the parent folder; None: the system's temporary directory.
    """
    path = tempfile.mkdtemp(prefix=f"kernel_coder-{os.getpid()}-", dir=root)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path, fd


def sweep(config: SandboxConfig) -> int:
    """Remove the folders and the control groups of dead Supervisors. Return how many were removed."""
    parents = find_parents(config.cgroup)
    groups = {parents.memory, parents.pids} if isinstance(parents, CgroupParents) else set()
    return _sweep_folders(Path(config.work_root or tempfile.gettempdir())) + sum(map(_sweep_groups, groups))


def _sweep_folders(root: Path) -> int:
    swept = 0
    for path in root.glob("kernel_coder-*"):
        if not _FOLDER.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # another user's, in use, or swept by another supervisor just now
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(fd).st_ctime < MIN_AGE_S:
                    continue
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                swept += 1
            finally:
                os.close(fd)
    return swept


def _sweep_groups(parent: Path) -> int:
    swept = 0
    for path in parent.glob("kernel_coder-*"):
        found = _GROUP.fullmatch(path.name)
        if found is None or _is_alive(int(found[1])):
            continue
        with contextlib.suppress(OSError):  # a process is still in it
            path.rmdir()
            swept += 1
    return swept


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
