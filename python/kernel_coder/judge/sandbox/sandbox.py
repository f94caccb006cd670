"""Starts untrusted processes with every layer of protection that this machine has."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import resource
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_coder import _C
from kernel_coder.judge.sandbox.access import PACKAGE_DATA, PLAIN_DEVICES, Access, gpu_device_nodes
from kernel_coder.judge.sandbox.cgroups import CgroupParents, find_parents, make_cgroup
from kernel_coder.judge.sandbox.config import Limits, SandboxConfig
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.sandbox.leftovers import make_folder
from kernel_coder.judge.sandbox.probe import probe
from kernel_coder.judge.sandbox.process import Process
from kernel_coder.judge.sandbox.report import Report
from kernel_coder.judge.sandbox.spec import (
    BIND,
    DEVICE,
    DIRECTORY,
    NAMESPACES,
    PROC,
    PROCESSES,
    READ,
    TMPFS,
    WRITE,
    bare_spec,
)

_core = _C.sandbox


class Sandbox:
    """Starts untrusted processes, all with the same layers.

    Raises:
        SandboxError: this machine lacks a layer of `config.require`, or a process with its own uid could not read what
            it needs.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.profile = probe(self.config)
        self.profile.refuse_below(self.config.require)
        if not _core.SUPPORTED:
            raise SandboxError("the sandbox is made of Linux's namespaces, Landlock and seccomp; this is not Linux")
        self._access = Access.of(self.config)
        if "uid" in self.profile.active and self._access.closed and "mount_namespace" not in self.profile.active:
            directory, inside = next(iter(self._access.closed.items()))
            raise SandboxError(
                f"a runner's uid cannot reach {inside[0]}, since {directory} is closed to other users and there is no "
                f"mount namespace to show it in. Use a Python outside {directory}, or: chmod o+x {directory}"
            )

    def start(
        self,
        argv: Sequence[str],
        *,
        fds: Sequence[int] = (),
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 30.0,
    ) -> Process:
        """Start a program with its arguments.

        The descriptors in `fds` get the numbers 3, 4, ... in the new process; all others are closed.

        Raises:
            FileNotFoundError: the program does not exist.
            SandboxError: the program could not be started, or not within `start_timeout_s`.
        """
        program = shutil.which(argv[0]) if argv else None
        if program is None:
            raise FileNotFoundError(f"there is no program {argv[0] if argv else '(empty argv)'}")
        process, spec, theirs = self.prepare(limits or Limits(), environment or {})
        try:
            with theirs:
                spec["argv"], spec["descriptors"] = [program, *argv[1:]], list(fds)
                _, pid, pidfd = _core.spawn(spec)
            process.attach(pid, pidfd)
            process.await_start(start_timeout_s)
        except BaseException:
            process.close()
            raise
        return process

    def prepare(self, limits: Limits, environment: Mapping[str, str]) -> tuple[Process, dict[str, Any], socket.socket]:
        """Make what a process needs before it starts: its object, its specification, and its end of the lifeline.

        The lifeline is a pair of sockets between the Supervisor and the keeper. Its end kills the tree.
        """
        active = self.profile.active
        if self.config.gpu is not None and limits.address_space_bytes is not None:
            raise ValueError("address_space_bytes must be None for a GPU runner: CUDA reserves more than it uses")
        if limits.memory_bytes is not None and "memory_cgroup" not in active:
            reason = self.profile["memory_cgroup"].detail
            raise SandboxError(f"memory_bytes cannot be held without memory_cgroup ({reason}); use data_bytes")
        with contextlib.ExitStack() as stack:
            report = Report(limits)
            stack.callback(report.close)
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            stack.callback(theirs.close)
            uid = None
            if "uid" in active:
                claim, uid = self._claim_uid()
                stack.callback(claim.close)
            work_dir, in_use = make_folder(self.config.work_root)
            stack.callback(os.close, in_use)
            stack.callback(_remove_tree, work_dir)
            if uid is not None:
                os.chown(work_dir, uid, uid)
            group = None
            if "memory_cgroup" in active:
                parents = find_parents(self.config.cgroup)
                assert isinstance(parents, CgroupParents)
                group = make_cgroup(parents, memory_bytes=limits.memory_bytes, processes=limits.processes)
                stack.callback(group.remove)
            spec = self._spec(limits, environment, work_dir, uid)
            spec["lifeline"], spec["report"] = theirs.fileno(), report.fd
            if group is not None:
                spec["cgroup_procs"], spec["cgroup_kill"] = group.procs, group.kill
            process = Process(report, ours, stack.pop_all(), work_dir=work_dir, uid=uid, cgroup=group)
        return process, spec, theirs

    def _claim_uid(self) -> tuple[socket.socket, int]:
        """Return a socket and a uid. The uid is reserved on this machine as long as the socket is open."""
        for uid in range(*self.config.uids):
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0kernel_coder.uid.{uid}")
            except OSError as error:
                claim.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return claim, uid
        first, end = self.config.uids
        raise SandboxError(
            f"all {end - first} uids from {first} on are taken by runners; give config.uids a wider range"
        )

    def _spec(self, limits: Limits, environment: Mapping[str, str], work_dir: str, uid: int | None) -> dict[str, Any]:
        """Return the specification, without the descriptors that belong to this process."""
        active = self.profile.active
        spec = bare_spec()
        spec |= {name: name in active for name in ("user_namespace", *NAMESPACES)}
        spec |= {
            "setup_only": False,
            "directory": work_dir,
            "environment": [f"{name}={value}" for name, value in self._environment(environment, work_dir).items()],
            "head_bytes": limits.output_head_bytes,
            "tail_bytes": limits.output_tail_bytes,
            "wall_s": limits.wall_s or 0.0,
            "no_new_privs": "no_new_privs" in active,
            "landlock": self._landlock_version(),
            "paths": self._path_rules(work_dir),
            "seccomp": "seccomp" in active,
            "own_signals_only": not active & {"pid_namespace", "uid"},
            "unix_sockets": self.config.gpu is not None,
            "limits": self._resource_limits(limits) if "limits" in active else [],
            "cores": list(limits.cores),
            "mounts": self._mounts(limits, work_dir, uid) if "mount_namespace" in active else [],
        }
        if uid is not None:
            spec |= {"uid": uid, "gid": uid, "groups": list(self.config.groups)}
        return spec

    def _landlock_version(self) -> int:
        """Return the version whose rules are applied. Rules for the network need 4, those for signals need 6."""
        active = self.profile.active
        if "landlock" not in active:
            return 0
        version = self.profile.landlock_version
        if "landlock_network" not in active:
            return min(version, 3)
        return version if "landlock_signals" in active else min(version, 5)

    def _environment(self, extra: Mapping[str, str], work_dir: str) -> dict[str, str]:
        path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        if os.path.isdir("/usr/local/cuda/bin"):
            path = f"/usr/local/cuda/bin:{path}"
        own = {"PATH": path, "HOME": work_dir, "TMPDIR": work_dir, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        own["USER"] = "runner"  # libraries cannot look up the user's name without /etc/passwd
        return own | dict(self.config.environment) | dict(extra)

    def _path_rules(self, work_dir: str) -> list[tuple[str, int]]:
        """Return what Landlock allows, as pairs of a path and a kind of access."""
        rules = [(path, READ) for path in self._access.readable]
        rules += [(path, DEVICE) for path in PLAIN_DEVICES]
        rules += [("/proc", PROCESSES), (work_dir, WRITE)]
        if "mount_namespace" in self.profile.active:
            rules.append(("/dev/shm", WRITE))  # a private one
        if self.config.gpu is not None:
            rules += [(path, DEVICE) for path in gpu_device_nodes(self.config.gpu)]
        return rules

    def _resource_limits(self, limits: Limits) -> list[tuple[int, int]]:
        """Return the arguments of `setrlimit`."""
        wanted = [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, limits.cpu_s),
            (resource.RLIMIT_AS, limits.address_space_bytes),
            (resource.RLIMIT_DATA, limits.data_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NOFILE, limits.open_files),
        ]
        if limits.processes is not None:
            wanted.append((resource.RLIMIT_NPROC, limits.processes + self._other_threads_of_user()))
        return [(which, value) for which, value in wanted if value is not None]

    def _other_threads_of_user(self) -> int:
        """Return the number of threads that the kernel counts together with those of the tree. It is 0 if the tree has
        its own uid or its own user namespace."""
        if self.profile.active & {"uid", "user_namespace"}:
            return 0
        count = 0
        for path in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                if os.stat(path).st_uid == os.geteuid():
                    count += len(os.listdir(f"{path}/task"))
        return count

    def _mounts(self, limits: Limits, work_dir: str, uid: int | None) -> list[tuple[int, str, str, str]]:
        """Return what is mounted in the tree's namespace, in order: kind, source, target and options of each mount."""
        steps: list[tuple[int, str, str, str]] = []
        if uid is not None:
            for closed, needed in self._access.closed.items():
                steps.append((TMPFS, "", closed, "mode=0755,size=1m"))  # hides all but what is mounted into it
                for path in needed:
                    inside = [closed, *Path(path).relative_to(closed).parts]
                    steps += [(DIRECTORY, "", os.path.join(*inside[: i + 1]), "") for i in range(1, len(inside))]
                    steps.append((BIND, path, path, ""))
        for path in (PACKAGE_DATA, *self.config.hidden):
            if os.path.isdir(path):
                steps.append((TMPFS, "", os.path.realpath(path), "mode=0755,size=4k"))
        owner = "" if uid is None else f",uid={uid},gid={uid}"
        size = "" if limits.work_bytes is None else f",size={limits.work_bytes}"
        if os.path.isdir("/dev/shm"):
            steps.append((TMPFS, "", "/dev/shm", f"mode=0700,nr_inodes=65536{owner}{size}"))
        if limits.work_bytes is not None:
            steps.append((TMPFS, "", work_dir, f"mode=0700,nr_inodes=65536{owner}{size}"))
        if "private_proc" in self.profile.active:
            steps.append((PROC, "", "/proc", ""))
        return steps


def _remove_tree(path: str) -> None:
    """Remove a work directory, even if the runner removed permissions inside it."""
    if os.geteuid() != 0:
        for directory, names, _ in os.walk(path):
            for name in names:
                inside = os.path.join(directory, name)
                if not os.path.islink(inside):
                    os.chmod(inside, 0o700)
    shutil.rmtree(path)
