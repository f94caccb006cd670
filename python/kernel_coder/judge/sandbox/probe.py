"""Finds out which layers of the sandbox this machine has, by starting a process with each.

>>> profile = probe()
>>> "seccomp" in profile.active or bool(profile["seccomp"].detail)
True

The code that starts these processes also starts runners. Layers that work are used, and missing ones are reported with
the reason. ``docs/judge.md`` says what the layers defend against and what they do not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from kernel_coder import _C
from kernel_coder.judge.sandbox.cgroups import CgroupParents, find_parents, make_cgroup
from kernel_coder.judge.sandbox.config import Limits, SandboxConfig
from kernel_coder.judge.sandbox.profile import LAYERS, Layer, SandboxProfile
from kernel_coder.judge.sandbox.report import ENDED, SETUP_FAILED, Report
from kernel_coder.judge.sandbox.spec import PROC, READ, bare_spec

_core = _C.sandbox

PROBE_S = 10.0
"""Time limit, in seconds, of a process that is started only to probe a layer."""


def probe(config: SandboxConfig | None = None) -> SandboxProfile:
    """Return every layer: active, or unavailable with the reason. The result is kept until this process ends."""
    config = config or SandboxConfig()
    if unknown := config.without - LAYERS.keys():
        raise ValueError(f"without names layers that do not exist: {sorted(unknown)}; known: {sorted(LAYERS)}")
    if not _core.SUPPORTED:
        return SandboxProfile(tuple(Layer(name, False, "this system is not Linux") for name in LAYERS))
    return _probe(config.without, config.uids, config.cgroup, os.geteuid())


@functools.lru_cache(maxsize=32)
def _probe(without: frozenset[str], uids: tuple[int, int], cgroup: str | None, euid: int) -> SandboxProfile:
    layers = tuple(_layers(SandboxConfig(without=without, uids=uids, cgroup=cgroup)))
    return SandboxProfile(layers, _core.landlock_version()[0])


def _attempt(**fields: Any) -> str | None:
    """Start a process that does nothing, with these fields of the specification. Return what failed, or None."""
    report = Report(Limits(output_head_bytes=0, output_tail_bytes=0))
    ours, theirs = socket.socketpair()
    spec = {**bare_spec(), "wall_s": PROBE_S, **fields, "lifeline": theirs.fileno(), "report": report.fd}
    with contextlib.ExitStack() as cleanup:
        for thing in (report, ours, theirs):
            cleanup.callback(thing.close)
        _, _, pidfd = _core.spawn(spec)
        cleanup.callback(os.close, pidfd)
        theirs.close()
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        found = report.read()
        if found.state == ENDED and found.ended_by == 0 and found.wait_status == 0:
            return None
        if found.state == SETUP_FAILED:
            return report.failure()
        return f"state {found.state}, wait status {found.wait_status}"


@functools.lru_cache(maxsize=256)
def _cached_attempt(euid: int, with_user_namespace: bool, fields: tuple[tuple[str, Any], ...]) -> str | None:
    """Make an attempt once for each user. A configuration that switches a layer off does not change the result."""
    return _attempt(user_namespace=with_user_namespace, **dict(fields))


def _layers(config: SandboxConfig) -> Iterator[Layer]:
    """Yield each layer in the order of LAYERS, tested together with the layers that it builds on."""
    found: dict[str, bool] = {}

    def layer(name: str, failure: str | None, detail: str) -> Layer:
        if name in config.without:
            failure = "switched off by the configuration"
        found[name] = failure is None
        return Layer(name, failure is None, failure if failure is not None else detail)

    def attempt(**fields: Any) -> str | None:
        return _cached_attempt(os.geteuid(), found.get("user_namespace", False), tuple(fields.items()))

    is_root = os.geteuid() == 0
    basic = attempt()
    yield layer("session", basic, "a session and process group of its own")
    yield layer("descriptors", basic, "closed, except those that are passed on")
    yield layer("environment", basic, "nothing is inherited")
    yield layer("no_new_privs", attempt(no_new_privs=True), "setuid programs give no privileges")
    uid = config.uids[0]
    uid_failure = attempt(uid=uid, gid=uid) if is_root else f"the supervisor is uid {os.geteuid()}, not root"
    yield layer("uid", uid_failure, f"one of {config.uids[0]} to {config.uids[1] - 1} for each runner, no capabilities")
    if is_root:
        yield layer("user_namespace", "not needed: root creates the other namespaces itself", "")
    else:
        failure = _cached_attempt(os.geteuid(), True, ())
        yield layer("user_namespace", failure, "maps only this user; no capabilities outside")
    purposes = {
        "pid_namespace": "other processes are invisible; all processes end with the first one",
        "net_namespace": "only an idle loopback interface",
        "ipc_namespace": "no shared System V memory, no message queues",
        "mount_namespace": "private work directory, /dev/shm and hidden directories",
    }
    for name, purpose in purposes.items():
        yield layer(name, attempt(**{name: True}), purpose)
    if found["pid_namespace"] and found["mount_namespace"]:
        failure = attempt(pid_namespace=True, mount_namespace=True, mounts=((PROC, "", "/proc", ""),))
        yield layer("private_proc", failure, "/proc shows only the runner's own processes")
    else:
        yield layer("private_proc", "there is no pid namespace or no mount namespace", "")
    version, error = _core.landlock_version()
    landlock_failure = os.strerror(error) if version == 0 else None
    if version:
        landlock_failure = attempt(no_new_privs=True, landlock=version, paths=(("/", READ),))
    yield layer("landlock", landlock_failure, f"version {version}: files that are not listed cannot be opened")
    for name, needed, what in (
        ("landlock_network", 4, "no TCP port can be bound or connected to"),
        ("landlock_signals", 6, "no signals and no abstract sockets to the outside"),
    ):
        lacking = "there is no Landlock" if not found["landlock"] else f"Landlock is of version {version} here"
        yield layer(name, None if found["landlock"] and version >= needed else lacking, what)
    if _core.filter_supported():
        seccomp_failure = attempt(no_new_privs=True, seccomp=True)
    else:
        seccomp_failure = "there is no filter for this kind of CPU"
    yield layer("seccomp", seccomp_failure, f"{len(_core.denied_calls())} system calls denied")
    limits = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_FSIZE, 1 << 20))
    yield layer("limits", attempt(limits=limits), "CPU time, memory of a process, file size, open files, no core dumps")
    as_root = is_root and not found["uid"]
    yield layer(
        "process_limit", "the kernel does not count root's processes" if as_root else None, "counted for each runner"
    )
    yield layer("kill_tree", *_kill_tree(found))
    parents = find_parents(config.cgroup)
    if isinstance(parents, CgroupParents):
        detail = f"version {parents.version}: memory and processes of the tree"
        yield layer("memory_cgroup", _try_cgroup(parents), detail)
    else:
        yield layer("memory_cgroup", parents, "")
    yield layer("sealed_buffers", None, "the size of shared memory cannot change")


def _kill_tree(found: Mapping[str, bool]) -> tuple[str | None, str]:
    """Return why a whole tree cannot be killed, or None; and how it is killed."""
    if found["pid_namespace"]:
        return None, "by the end of the pid namespace"
    if found["uid"]:
        return None, "by the runner's uid, and by adopting orphans"
    if os.path.exists("/proc/thread-self/children"):
        return None, "by adopting orphans and killing until none is left"
    return "/proc/thread-self/children does not exist", ""


def _try_cgroup(parents: CgroupParents) -> str | None:
    try:
        group = make_cgroup(parents, memory_bytes=1 << 28, processes=64)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    try:
        return _attempt(cgroup_procs=group.procs)
    finally:
        group.remove()
