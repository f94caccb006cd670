"""The layers of a sandbox, and the limits of one process in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_REQUIRED = frozenset({"no_new_privs", "landlock", "seccomp", "limits", "kill_tree"})
"""Layers without which no untrusted code is started. If one is missing, a candidate can read another's files, stop the
Supervisor or leave processes behind."""


@dataclass(frozen=True)
class SandboxConfig:
    """The layers of a sandbox, the user that its processes run as, and the files that they may open.

    Attributes:
        require: layers that must be active; see :data:`kernel_coder.judge.sandbox.profile.LAYERS`.
        without: layers that are switched off even if this machine has them.
        uids: the range of user ids for sandboxed processes, without its end. If the Supervisor is root, each living
            process has its own.
        groups: supplementary groups, for device nodes that only a group may open.
        gpu: index of the one GPU whose device nodes can be opened; None for no GPU.
        readable: paths that can be read, besides those of the system and of this Python.
        hidden: directories that appear empty. This needs the layer ``mount_namespace``.
        environment: environment variables besides PATH, HOME, TMPDIR, LANG and a few others.
        work_root: parent of the private work directories; None: the system's temporary directory.
        cgroup: an empty directory of control groups (version 2) that was delegated to this user.
    """

    require: frozenset[str] = DEFAULT_REQUIRED
    without: frozenset[str] = frozenset()
    uids: tuple[int, int] = (60600, 61112)
    groups: tuple[int, ...] = ()
    gpu: int | None = None
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    work_root: str | None = None
    cgroup: str | None = None


@dataclass(frozen=True)
class Limits:
    """Limits of one sandboxed process and of all processes that it starts (its tree). `None` is no limit.

    Attributes:
        wall_s: time in seconds after which the tree is killed.
        cpu_s: processor time of each process, in seconds.
        address_space_bytes: virtual memory of each process. CUDA does not start under this limit.
        data_bytes: private memory of each process.
        memory_bytes: memory of the whole tree. This needs the layer ``memory_cgroup``.
        file_bytes: size of each file.
        work_bytes: size of all files in the work directory together. This needs the layer ``mount_namespace``; the
            directory is then in memory and vanishes at the end.
        processes: number of processes and threads of the tree.
        open_files: open files of each process.
        output_head_bytes, output_tail_bytes: bytes that are kept of the beginning and of the end of each output stream.
        cores: the cores that the tree may run on; empty for all.
    """

    wall_s: float | None = 60.0
    cpu_s: int | None = None
    address_space_bytes: int | None = None
    data_bytes: int | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = 1 << 30
    work_bytes: int | None = 1 << 30
    processes: int | None = 256
    open_files: int | None = 1024
    output_head_bytes: int = 1 << 16
    output_tail_bytes: int = 1 << 16
    cores: tuple[int, ...] = ()
