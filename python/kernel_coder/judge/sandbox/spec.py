"""The specification of a sandboxed process, as ``_C.sandbox.spawn`` takes it."""

from __future__ import annotations

from typing import Any

from kernel_coder import _C

NAMESPACES = ("net_namespace", "ipc_namespace", "mount_namespace", "pid_namespace")
READ, WRITE, DEVICE, PROCESSES = (
    _C.sandbox.PATH_ACCESSES.index(name) for name in ("read", "write", "device", "processes")
)
TMPFS, DIRECTORY, BIND, PROC = (_C.sandbox.MOUNT_KINDS.index(name) for name in ("tmpfs", "directory", "bind", "proc"))


def bare_spec() -> dict[str, Any]:
    """Return the specification of a process without any layer, which does nothing and ends."""
    return {
        "argv": [],
        "environment": [],
        "setup_only": True,
        "directory": "/",
        "descriptors": [],
        "lifeline": -1,
        "report": -1,
        "head_bytes": 0,
        "tail_bytes": 0,
        "wall_s": 0.0,
        **dict.fromkeys(["user_namespace", *NAMESPACES], False),
        "mounts": [],
        "uid": -1,
        "gid": -1,
        "groups": [],
        "no_new_privs": False,
        "landlock": 0,
        "paths": [],
        "seccomp": False,
        "own_signals_only": False,
        "unix_sockets": False,
        "limits": [],
        "cores": [],
        "cgroup_procs": [],
        "cgroup_kill": -1,
    }
