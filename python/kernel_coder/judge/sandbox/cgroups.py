"""Control groups: limits on memory and processes of a whole tree, where this user may create groups."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

_numbers = itertools.count()


@dataclass(frozen=True)
class CgroupParents:
    """Directories in which groups can be created: in version 1 one for each controller, in version 2 the same one."""

    version: int
    memory: Path
    pids: Path


@dataclass
class Cgroup:
    """The groups of one sandboxed tree.

    Attributes:
        version: version of the control groups, 1 or 2.
        directories: directories of the groups.
        procs: open descriptors of their ``cgroup.procs``, with which the tree's first process enters them.
        kill: open descriptor of ``cgroup.kill``; -1 if the kernel has none.
    """

    version: int
    directories: list[Path]
    procs: list[int] = field(default_factory=list)
    kill: int = -1

    def close_descriptors(self) -> None:
        """Close the open descriptors."""
        for fd in [*self.procs, self.kill]:
            if fd >= 0:
                os.close(fd)
        self.procs, self.kill = [], -1

    def out_of_memory_kills(self) -> int:
        """Return how many processes of the tree the kernel killed for using too much memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for line in (self.directories[0] / name).read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0

    def remove(self, patience_s: float = 2.0) -> None:
        """Remove the groups. After the last process has ended, the kernel may need up to `patience_s` seconds."""
        self.close_descriptors()
        deadline = time.monotonic() + patience_s
        for directory in self.directories:
            while directory.exists():
                try:
                    directory.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)


def _memberships() -> dict[str, str]:
    """Return the path of this process's group by controller. The controller "" is version 2."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _mounts() -> dict[str, Path]:
    """Return the directory where each controller is mounted. The controller "" is version 2."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            mounts.setdefault("", Path(target))
        elif kind == "cgroup":
            for controller in set(options.split(",")) & {"memory", "pids"}:
                mounts.setdefault(controller, Path(target))
    return mounts


def _inside(mount: Path, path: str) -> Path:
    """Return the directory of a group. In a container the mount itself may be the group."""
    directory = mount / path.lstrip("/")
    return directory if directory.is_dir() else mount


def find_parents(delegated: str | None) -> CgroupParents | str:
    """Return where groups with a memory and a pids controller can be created, or the reason why they cannot.

    `delegated` is an empty directory of version 2 that this user owns. Without it, this process's groups are tried.
    """
    try:
        groups, mounts = _memberships(), _mounts()
    except OSError as error:
        return f"/proc cannot be read: {error}"
    if delegated is not None:
        return _version_2(Path(delegated))
    if "memory" in groups and "memory" in mounts and "pids" in groups and "pids" in mounts:
        memory, pids = (_inside(mounts[name], groups[name]) for name in ("memory", "pids"))
        if all(os.access(directory, os.W_OK | os.X_OK) for directory in (memory, pids)):
            return CgroupParents(1, memory, pids)
        return f"{memory} and {pids} are not writable for uid {os.geteuid()}"
    if "" in groups and "" in mounts:
        return _version_2(_inside(mounts[""], groups[""]))
    return "no memory controller is mounted"


def _version_2(directory: Path) -> CgroupParents | str:
    try:
        enabled = (directory / "cgroup.subtree_control").read_text().split()
        wanted = [name for name in ("memory", "pids") if name not in enabled]
        if wanted:
            (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as error:
        return f"the memory and pids controllers of {directory} cannot be enabled: {error.strerror}"
    if not os.access(directory, os.W_OK | os.X_OK) or not os.access(directory / "cgroup.procs", os.W_OK):
        return f"{directory} is not writable for uid {os.geteuid()}"
    return CgroupParents(2, directory, directory)


def make_cgroup(parents: CgroupParents, *, memory_bytes: int | None, processes: int | None) -> Cgroup:
    """Create the groups of one tree and set their limits. None is no limit."""
    name = f"kernel_coder-{os.getpid()}-{next(_numbers)}"
    directories = list(dict.fromkeys([parents.memory / name, parents.pids / name]))
    group = Cgroup(parents.version, [])
    try:
        for directory in directories:
            directory.mkdir()
            group.directories.append(directory)
            group.procs.append(os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        if memory_bytes is not None:
            limit = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
            (directories[0] / limit).write_text(str(memory_bytes))
            swap = directories[0] / ("memory.swap.max" if group.version == 2 else "memory.memsw.limit_in_bytes")
            if swap.exists():
                swap.write_text("0" if group.version == 2 else str(memory_bytes))
        if processes is not None:
            (directories[-1] / "pids.max").write_text(str(processes))
        kill = directories[0] / "cgroup.kill"
        if kill.exists():
            group.kill = os.open(kill, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        group.remove()
        raise
    return group
