"""Untrusted processes: started with every layer this machine has, watched, and killed with all they started.

>>> profile = probe()
>>> "seccomp" in profile.active or bool(profile["seccomp"].detail)
True

Each layer is probed by starting a process with it, through the very code that starts runners. What is there is used,
what is missing is named, and below a configured minimum nothing untrusted is started. ``docs/judge.md`` says what the
layers defend against and what they do not.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import mmap
import os
import resource
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from kernel_coder import _C
from kernel_coder.judge.sandbox.cgroups import Cgroup, CgroupParents, find_parents, make_cgroup

_core = _C.sandbox

#: Each layer and how to get it where it is missing.
LAYERS: dict[str, str] = {
    "session": "Linux 5.3 or newer",
    "descriptors": "Linux 5.3 or newer",
    "environment": "Linux 5.3 or newer",
    "no_new_privs": "Linux 3.5 or newer",
    "uid": "start the supervisor as root (it gives every runner a uid of its own), or in a container with CAP_SETUID",
    "user_namespace": (
        "unprivileged user namespaces: sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 "
        "(Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container, a seccomp profile that "
        "allows unshare"
    ),
    "pid_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "net_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "ipc_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "mount_namespace": "root with CAP_SYS_ADMIN, or unprivileged user namespaces",
    "private_proc": "a pid and a mount namespace, and in a container a /proc that is not masked",
    "landlock": "Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK, and landlock among the kernel's lsm= modules",
    "landlock_network": "Linux 6.7 or newer with Landlock",
    "landlock_signals": "Linux 6.12 or newer with Landlock",
    "seccomp": "a kernel with CONFIG_SECCOMP_FILTER, on x86-64 or aarch64",
    "limits": "any Linux",
    "process_limit": "a runner that is not root: start as root so that uids can be dropped, or as an ordinary user",
    "kill_tree": "a pid namespace, a uid of its own, or a kernel with CONFIG_PROC_CHILDREN",
    "memory_cgroup": (
        "a writable control group: as root, or name a delegated empty directory of version 2 (systemd: Delegate=yes)"
    ),
    "sealed_buffers": "Linux 3.17 or newer",
}

#: Without these, one candidate can read another's files, stop the supervisor or leave processes behind.
DEFAULT_REQUIRED = frozenset({"no_new_privs", "landlock", "seccomp", "limits", "kill_tree"})

PATIENCE_S = 60.0
"""For the end of a tree that was killed. The kernel of a busy machine takes seconds over hundreds of processes."""

_NAMESPACES = ("net_namespace", "ipc_namespace", "mount_namespace", "pid_namespace")
_READ, _WRITE, _DEVICE, _PROCESSES = range(4)  # PathAccess
_TMPFS, _DIRECTORY, _BIND, _PROC = range(4)  # MountStep::Kind
_REPORT = struct.Struct("<IIiIiiii5q2Q")
assert not _core.SUPPORTED or _REPORT.size == _core.REPORT_BYTES
_STARTING, _RUNNING, _ENDED, _SETUP_FAILED = range(4)
_ENDED_BY = ("itself", "wall_limit", "supervisor")

_SYSTEM_PATHS = (
    *("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/sys"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/nsswitch.conf", "/etc/ssl/openssl.cnf", "/etc/nvidia"),
)
_PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class SandboxError(Exception):
    """The sandbox could not be had or could not be set up: the harness's failure, never the candidate's."""


class Layer(NamedTuple):
    """One layer as this machine gives it."""

    name: str
    active: bool
    detail: str


@dataclass(frozen=True)
class SandboxProfile:
    """What the sandbox consists of here."""

    layers: tuple[Layer, ...]
    landlock_version: int = 0

    def __getitem__(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    @property
    def active(self) -> frozenset[str]:
        return frozenset(layer.name for layer in self.layers if layer.active)

    def refuse_below(self, require: frozenset[str]) -> None:
        """SandboxError, with each missing layer, why it is missing and how to get it."""
        if unknown := require - LAYERS.keys():
            raise ValueError(f"require names layers that do not exist: {sorted(unknown)}; known: {sorted(LAYERS)}")
        missing = [layer for layer in self.layers if layer.name in require and not layer.active]
        if missing:
            named = "; ".join(f"{layer.name} ({layer.detail}) needs {LAYERS[layer.name]}" for layer in missing)
            raise SandboxError(f"untrusted code is not run here, since the sandbox lacks what is required: {named}")

    def as_dict(self) -> dict[str, str]:
        """For records: each layer's state and detail in one text."""
        return {name: f"{'active' if active else 'unavailable'}: {detail}" for name, active, detail in self.layers}

    def __str__(self) -> str:
        return "\n".join(f"{name:<17} {'active     ' if on else 'unavailable'}  {why}" for name, on, why in self.layers)


@dataclass(frozen=True)
class SandboxConfig:
    """Who a runner is and what it may open. Paths are for reading unless they say otherwise."""

    require: frozenset[str] = DEFAULT_REQUIRED
    without: frozenset[str] = frozenset()  #: layers not to use even where they are there
    uids: tuple[int, int] = (60600, 61112)  #: first and last but one; one each for the runners alive at a time, if root
    groups: tuple[int, ...] = ()  #: supplementary groups, where device nodes ask for one
    gpu: int | None = None  #: the one GPU whose device nodes can be opened
    readable: tuple[str, ...] = ()  #: besides the system's and this Python's own directories
    hidden: tuple[str, ...] = ()  #: directories that appear empty, where there is a mount namespace
    environment: Mapping[str, str] = field(default_factory=dict)  #: besides PATH, HOME, TMPDIR, LANG
    work_root: str | None = None  #: where private work directories are made; the system's temporary directory
    cgroup: str | None = None  #: a delegated empty directory of control groups, version 2


@dataclass(frozen=True)
class Limits:
    """Bounds of one run. `None` is no bound.

    `address_space_bytes` and `data_bytes` are a single process's; CUDA does not start under the first. `memory_bytes`
    is the whole tree's and needs the layer memory_cgroup; `work_bytes` bounds all files of the work directory together
    and needs mount_namespace (the directory is then in memory and gone at the end).
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


@dataclass(frozen=True)
class Ended:
    """How a sandboxed tree ended. Only for people and records: success is what the shared buffers hold."""

    exit_code: int | None
    signal: int | None
    ended_by: str  #: "itself", "wall_limit" or "supervisor"
    out_of_memory: bool | None  #: None: killed by SIGKILL, and nothing here knows by whom
    left_running: bool  #: it ended with processes of its own still running; they were killed
    wall_s: float
    user_s: float
    system_s: float
    max_rss_bytes: int  #: of the largest process

    @property
    def reason(self) -> str:
        """One clause.

        >>> Ended(None, 11, "itself", False, False, 0.1, 0.1, 0.0, 1).reason
        'ended by SIGSEGV'
        """
        if self.ended_by == "wall_limit":
            return f"killed at the time limit after {self.wall_s:.1f} s"
        if self.ended_by == "supervisor":
            return "killed by the supervisor"
        if self.out_of_memory:
            return "killed for using too much memory"
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            return f"ended by {name}" + (", perhaps for memory" if self.out_of_memory is None else "")
        return f"exit code {self.exit_code}"


class Output(NamedTuple):
    """What is kept of an output stream: its beginning and its end."""

    head: bytes
    tail: bytes
    written: int

    @property
    def text(self) -> str:
        omitted = self.written - len(self.head) - len(self.tail)
        mark = f"\n[... {omitted} bytes left out ...]\n" if omitted else ""
        return self.head.decode(errors="replace") + mark + self.tail.decode(errors="replace")


# ---- the report ----------------------------------------------------------------------------------------------------


class _Report:
    """The keeper's shared block, as report.h lays it out."""

    def __init__(self, limits: Limits) -> None:
        self.head, self.tail = limits.output_head_bytes, limits.output_tail_bytes
        size = _REPORT.size + 2 * (self.head + self.tail)
        self.fd: int = _core.make_buffer("sandbox-report", size)
        self.map = mmap.mmap(self.fd, size)

    def fields(self) -> tuple[int, ...]:
        return _REPORT.unpack_from(self.map)

    @property
    def state(self) -> int:
        return self.fields()[0]

    def failure(self) -> str:
        """Which step of the setup failed, and why."""
        step, error, detail = self.fields()[4:7]
        which = f" {detail}" if _core.SETUP_STEPS[step] in ("mount", "limits") else ""
        return f"step {_core.SETUP_STEPS[step]}{which}: {os.strerror(error)}"

    def output(self, stream: int) -> Output:
        written = self.fields()[13 + stream]
        start = _REPORT.size + stream * (self.head + self.tail)
        head = self.map[start : start + min(written, self.head)]
        later = max(written - self.head, 0)
        ring = self.map[start + self.head : start + self.head + min(later, self.tail)]
        cut = later % self.tail if self.tail and later > self.tail else 0
        return Output(head, ring[cut:] + ring[:cut], written)

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)


# ---- a running tree ------------------------------------------------------------------------------------------------


class Process:
    """A sandboxed tree. Use it as a context manager, or call `close`: it kills, reaps and removes whatever is left."""

    def __init__(self, report: _Report, lifeline: socket.socket, cleanup: contextlib.ExitStack, work_dir: str) -> None:
        self._report = report
        self._lifeline = lifeline
        self._cleanup = cleanup
        self._ended: Ended | None = None
        self._outputs: tuple[Output, Output] | None = None
        self._closed = False
        self._cgroup: Cgroup | None = None
        self.work_dir = work_dir
        self.uid: int | None = None
        self.pid = -1  #: the keeper's
        self.pidfd = -1  #: the keeper's: readable once nothing of the tree is left

    def _await_start(self, timeout_s: float) -> None:
        """Until every layer is in place; SandboxError if one of them failed."""
        self._lifeline.settimeout(timeout_s)
        try:
            self._lifeline.recv(1)
        except TimeoutError:
            raise SandboxError(f"the sandbox was not set up within {timeout_s:g} s") from None
        if self._report.state in (_STARTING, _SETUP_FAILED):
            self._await_keeper(timeout_s)
            if self._report.state == _STARTING:
                raise SandboxError("the sandbox's keeper died before it started the process")
            raise SandboxError(f"the sandbox could not be set up: {self._report.failure()}")

    def _await_keeper(self, timeout_s: float | None) -> bool:
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(None if timeout_s is None else max(timeout_s, 0.0) * 1000):
            return False
        with contextlib.suppress(ChildProcessError):  # not ours where a fork server started it
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        return True

    @property
    def running(self) -> bool:
        return self._ended is None and not self._await_keeper(0.0)

    def wait(self, timeout_s: float | None = None) -> Ended:
        """How the tree ended, once nothing of it is left. TimeoutError if that takes longer; nothing is killed then."""
        if self._ended is None:
            if not self._await_keeper(timeout_s):
                raise TimeoutError(f"the sandboxed process still runs after {timeout_s:g} s")
            self._ended = self._read_end()
            self._outputs = (self._report.output(0), self._report.output(1))
        return self._ended

    def _read_end(self) -> Ended:
        state, ended_by, status, left, *_, started, ended, user, system, rss, _out, _err = self._report.fields()
        if state != _ENDED:
            raise SandboxError(
                "the sandbox's keeper was killed"
                if state != _SETUP_FAILED
                else f"the sandbox could not be set up: {self._report.failure()}"
            )
        code = os.waitstatus_to_exitcode(status)
        killed = code == -signal.SIGKILL and ended_by == 0
        out_of_memory: bool | None = False
        if self._cgroup is not None:
            out_of_memory = killed and self._cgroup.out_of_memory_kills() > 0
        elif killed:
            out_of_memory = None
        return Ended(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            ended_by=_ENDED_BY[ended_by],
            out_of_memory=out_of_memory,
            left_running=bool(left),
            wall_s=(ended - started) / 1e9,
            user_s=user / 1e6,
            system_s=system / 1e6,
            max_rss_bytes=rss * 1024,
        )

    def kill(self) -> None:
        """Have every process of the tree killed; returns at once. Any thread may call it, also while another waits."""
        with contextlib.suppress(OSError):
            self._lifeline.send(b"k")

    def kill_tree(self, patience_s: float = PATIENCE_S) -> Ended:
        """Kill every process of the tree, wait until the last is gone. SandboxError if the kernel does not let go."""
        self.kill()
        try:
            return self.wait(patience_s)
        except TimeoutError:
            raise SandboxError(f"a process stayed in the kernel for {patience_s:g} s after SIGKILL") from None

    @property
    def stdout(self) -> Output:
        return self._outputs[0] if self._outputs else self._report.output(0)

    @property
    def stderr(self) -> Output:
        return self._outputs[1] if self._outputs else self._report.output(1)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._ended is None and self.pidfd >= 0:
                with contextlib.suppress(OSError):
                    self._lifeline.send(b"k")
                if not self._await_keeper(PATIENCE_S):
                    raise SandboxError(f"a process stayed in the kernel for {PATIENCE_S:g} s after SIGKILL")
                with contextlib.suppress(SandboxError):
                    self._ended = self._read_end()
                self._outputs = (self._report.output(0), self._report.output(1))
        finally:
            self._cleanup.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- what a runner may open ----------------------------------------------------------------------------------------


def gpu_device_nodes(index: int) -> list[str]:
    """The device nodes of one NVIDIA GPU and what all of them share."""
    shared = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps")
    return [f"/dev/nvidia{index}", *shared]


def _python_paths() -> list[str]:
    """This interpreter, its library and its packages, and this package. Never the current directory or PYTHONPATH."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [sys.prefix, sys.base_prefix, *(sysconfig.get_path(name) for name in names)]
    return [*paths, str(Path(__file__).parents[1]), os.path.dirname(os.path.realpath(sys.executable))]


def _outermost(paths: Sequence[str]) -> list[str]:
    """Real paths that exist, without those inside another."""
    real = sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})
    return [path for path in real if not any(path != other and _is_inside(path, other) for other in real)]


def _is_inside(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _closed_ancestor(path: str) -> str | None:
    """The outermost directory above `path` that other users cannot pass, as /root is on most systems."""
    for ancestor in reversed(Path(path).parents):
        if not os.stat(ancestor).st_mode & stat.S_IXOTH:
            return str(ancestor)
    return None


class _Access(NamedTuple):
    """The paths of one configuration."""

    readable: list[str]
    closed: dict[str, list[str]]  # a directory that other users cannot pass, and what is needed inside


def _access(config: SandboxConfig) -> _Access:
    readable = _outermost([*_SYSTEM_PATHS, *_python_paths(), *config.readable])
    closed: dict[str, list[str]] = {}
    for path in readable:
        if (ancestor := _closed_ancestor(path)) is not None and os.path.isdir(path):
            closed.setdefault(ancestor, []).append(path)
    return _Access(readable, closed)


# ---- probing -------------------------------------------------------------------------------------------------------


def _bare_spec() -> dict[str, Any]:
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
        **dict.fromkeys(["user_namespace", *_NAMESPACES], False),
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


@functools.lru_cache(maxsize=256)
def _tried(euid: int, with_user_namespace: bool, fields: tuple[tuple[str, Any], ...]) -> str | None:
    """`_attempt`, once for each user: what is switched off by a configuration is still there."""
    return _attempt(user_namespace=with_user_namespace, **dict(fields))


def _attempt(**fields: Any) -> str | None:
    """Start a process with these fields of the specification and nothing to do: None, or what failed."""
    limits = Limits(output_head_bytes=0, output_tail_bytes=0)
    report = _Report(limits)
    ours, theirs = socket.socketpair()
    spec = {**_bare_spec(), "wall_s": 10.0, **fields, "lifeline": theirs.fileno(), "report": report.fd}
    with contextlib.ExitStack() as cleanup:
        for thing in (report, ours, theirs):
            cleanup.callback(thing.close)
        _, _, pidfd = _core.spawn(spec)
        cleanup.callback(os.close, pidfd)
        theirs.close()
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        state, ended_by, status = report.fields()[:3]
        if state == _ENDED and ended_by == 0 and status == 0:
            return None
        return report.failure() if state == _SETUP_FAILED else f"state {state}, wait status {status}"


def _layer_states(config: SandboxConfig) -> Iterator[Layer]:
    """Each layer in the order of LAYERS, by trying it on top of those it builds on."""
    found: dict[str, bool] = {}

    def layer(name: str, failure: str | None, detail: str) -> Layer:
        if name in config.without:
            failure = "switched off by the configuration"
        found[name] = failure is None
        return Layer(name, failure is None, failure if failure is not None else detail)

    def attempt(**fields: Any) -> str | None:
        return _tried(os.geteuid(), found.get("user_namespace", False), tuple(fields.items()))

    is_root = os.geteuid() == 0
    basic = attempt()
    yield layer("session", basic, "a session and process group of its own")
    yield layer("descriptors", basic, "closed but for those handed over")
    yield layer("environment", basic, "built from nothing")
    yield layer("no_new_privs", attempt(no_new_privs=True), "setuid programs give nothing")
    uid = config.uids[0]
    uid_failure = attempt(uid=uid, gid=uid) if is_root else f"the supervisor is uid {os.geteuid()}, not root"
    yield layer("uid", uid_failure, f"one of {config.uids[0]} to {config.uids[1] - 1} for each runner, no capabilities")
    if is_root:
        yield layer("user_namespace", "not needed: root makes the other namespaces itself", "")
    else:
        yield layer("user_namespace", _tried(os.geteuid(), True, ()), "this user alone, no capabilities outside")
    purposes = {
        "pid_namespace": "other processes do not exist; its first process takes all others with it",
        "net_namespace": "no interface but an idle loopback",
        "ipc_namespace": "no shared System V memory, no message queues",
        "mount_namespace": "private work directory, /dev/shm and hidden directories",
    }
    for name, purpose in purposes.items():
        yield layer(name, attempt(**{name: True}), purpose)
    if found["pid_namespace"] and found["mount_namespace"]:
        failure = attempt(pid_namespace=True, mount_namespace=True, mounts=((_PROC, "", "/proc", ""),))
        yield layer("private_proc", failure, "/proc shows the runner's own processes only")
    else:
        yield layer("private_proc", "there is no pid namespace or no mount namespace", "")
    version, error = _core.landlock_version()
    landlock_failure = os.strerror(error) if version == 0 else None
    if version:
        landlock_failure = attempt(no_new_privs=True, landlock=version, paths=(("/", _READ),))
    yield layer("landlock", landlock_failure, f"version {version}: files that are not listed cannot be opened")
    for name, needed, what in (
        ("landlock_network", 4, "no TCP port can be bound or connected to"),
        ("landlock_signals", 6, "no signal and no abstract socket leaves the sandbox"),
    ):
        lacking = "there is no Landlock" if not found["landlock"] else f"Landlock is of version {version} here"
        yield layer(name, None if found["landlock"] and version >= needed else lacking, what)
    if _core.filter_supported():
        seccomp_failure = attempt(no_new_privs=True, seccomp=True)
    else:
        seccomp_failure = "no filter is written for this kind of CPU"
    yield layer("seccomp", seccomp_failure, f"{len(_core.denied_calls())} system calls denied")
    limits = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_FSIZE, 1 << 20))
    yield layer("limits", attempt(limits=limits), "CPU time, memory of a process, file size, open files, no core dumps")
    as_root = is_root and not found["uid"]
    yield layer(
        "process_limit", "the kernel counts no processes of root" if as_root else None, "counted for each runner"
    )
    yield layer("kill_tree", *_kill_tree(found))
    parents = find_parents(config.cgroup)
    if isinstance(parents, CgroupParents):
        yield layer(
            "memory_cgroup", _try_cgroup(parents), f"version {parents.version}: memory and processes of the tree"
        )
    else:
        yield layer("memory_cgroup", parents, "")
    yield layer("sealed_buffers", None, "the size of shared memory cannot change")


def _kill_tree(found: Mapping[str, bool]) -> tuple[str | None, str]:
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


@functools.lru_cache(maxsize=32)
def _probe(without: frozenset[str], uids: tuple[int, int], cgroup: str | None, euid: int) -> SandboxProfile:
    layers = tuple(_layer_states(SandboxConfig(without=without, uids=uids, cgroup=cgroup)))
    return SandboxProfile(layers, _core.landlock_version()[0])


def probe(config: SandboxConfig | None = None) -> SandboxProfile:
    """Every layer: active, or unavailable with the reason. The answer is kept for the life of this process."""
    config = config or SandboxConfig()
    if unknown := config.without - LAYERS.keys():
        raise ValueError(f"without names layers that do not exist: {sorted(unknown)}; known: {sorted(LAYERS)}")
    if not _core.SUPPORTED:
        return SandboxProfile(tuple(Layer(name, False, "this system is not Linux") for name in LAYERS))
    return _probe(config.without, config.uids, config.cgroup, os.geteuid())


# ---- starting ------------------------------------------------------------------------------------------------------


class Sandbox:
    """Starts untrusted processes, all with the same layers.

    SandboxError if the machine does not reach `config.require`, or if a runner's uid cannot reach what it needs.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.profile = probe(self.config)
        self.profile.refuse_below(self.config.require)
        if not _core.SUPPORTED:
            raise SandboxError("the sandbox is made of Linux's namespaces, Landlock and seccomp; this is not Linux")
        self._access = _access(self.config)
        if "uid" in self.profile.active and self._access.closed and "mount_namespace" not in self.profile.active:
            directory, inside = next(iter(self._access.closed.items()))
            raise SandboxError(
                f"a runner's uid cannot reach {inside[0]}, since {directory} is closed to other users and there is no "
                f"mount namespace to show it in. Use a Python outside {directory}, or: chmod o+x {directory}"
            )

    def start(
        self,
        run: Sequence[str] | Callable[[list[int]], int | None],
        *,
        fds: Sequence[int] = (),
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 30.0,
    ) -> Process:
        """Start a program, or this process's own continuation in `run(fds)`.

        The descriptors in `fds` are 3, 4, ... there; all others are closed. A callable's result is its exit code. It
        runs in a fork of this process, with all that this process holds in memory, so it is for a warm parent such as
        `ForkServer`'s, and refused where there are threads.
        """
        limits = limits or Limits()
        if not callable(run) and (not run or shutil.which(run[0]) is None):
            raise FileNotFoundError(f"there is no program {run[0] if run else '(empty argv)'}")
        if callable(run) and (threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1):
            raise SandboxError("a process with several threads cannot be forked safely; use ForkServer or a program")
        process, spec, theirs = self.prepare(limits, environment or {})
        try:
            with theirs:
                if not callable(run):
                    spec["argv"] = [shutil.which(run[0]), *run[1:]]
                spec["descriptors"] = list(fds)
                is_sandboxed, process.pid, process.pidfd = _core.spawn(spec)
                if is_sandboxed:
                    assert callable(run)
                    continue_sandboxed(spec, run)
            process._cleanup.callback(os.close, process.pidfd)
            process._await_start(start_timeout_s)
        except BaseException:
            process.close()
            raise
        return process

    def prepare(self, limits: Limits, environment: Mapping[str, str]) -> tuple[Process, dict[str, Any], socket.socket]:
        """What a process needs before it is started: our side of it, its specification, its end of the lifeline."""
        active = self.profile.active
        if self.config.gpu is not None and limits.address_space_bytes is not None:
            raise ValueError("address_space_bytes must be None for a GPU runner: CUDA reserves more than it uses")
        if limits.memory_bytes is not None and "memory_cgroup" not in active:
            reason = self.profile["memory_cgroup"].detail
            raise SandboxError(f"memory_bytes cannot be held without memory_cgroup ({reason}); use data_bytes")
        with contextlib.ExitStack() as stack:
            report = _Report(limits)
            stack.callback(report.close)
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            stack.callback(theirs.close)
            uid = None
            if "uid" in active:
                claim, uid = self._claim_uid()
                stack.callback(claim.close)
            work_dir = tempfile.mkdtemp(prefix="kernel_coder-", dir=self.config.work_root)
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
            process = Process(report, ours, stack.pop_all(), work_dir)
            process.uid, process._cgroup = uid, group
        return process, spec, theirs

    def _claim_uid(self) -> tuple[socket.socket, int]:
        """A uid that no other runner on this machine has while the socket is open."""
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
        active = self.profile.active
        spec = _bare_spec()
        spec |= {name: name in active for name in ("user_namespace", *_NAMESPACES)}
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
        own["USER"] = "runner"  # there is no list of users to look in
        return own | dict(self.config.environment) | dict(extra)

    def _path_rules(self, work_dir: str) -> list[tuple[str, int]]:
        rules = [(path, _READ) for path in self._access.readable]
        rules += [(path, _DEVICE) for path in _PLAIN_DEVICES]
        rules += [("/proc", _PROCESSES), (work_dir, _WRITE)]
        if "mount_namespace" in self.profile.active:
            rules.append(("/dev/shm", _WRITE))  # its own
        if self.config.gpu is not None:
            rules += [(path, _DEVICE) for path in gpu_device_nodes(self.config.gpu)]
        return rules

    def _resource_limits(self, limits: Limits) -> list[tuple[int, int]]:
        wanted = [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, limits.cpu_s),
            (resource.RLIMIT_AS, limits.address_space_bytes),
            (resource.RLIMIT_DATA, limits.data_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NOFILE, limits.open_files),
        ]
        if limits.processes is not None:
            wanted.append((resource.RLIMIT_NPROC, limits.processes + self._others_of_this_user()))
        return [(which, value) for which, value in wanted if value is not None]

    def _others_of_this_user(self) -> int:
        """Threads that the kernel counts together with the runner's: none where it has a uid or a user namespace."""
        if self.profile.active & {"uid", "user_namespace"}:
            return 0
        count = 0
        for path in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                if os.stat(path).st_uid == os.geteuid():
                    count += len(os.listdir(f"{path}/task"))
        return count

    def _mounts(self, limits: Limits, work_dir: str, uid: int | None) -> list[tuple[int, str, str, str]]:
        steps: list[tuple[int, str, str, str]] = []
        if uid is not None:
            for closed, needed in self._access.closed.items():
                steps.append((_TMPFS, "", closed, "mode=0755,size=1m"))  # the same names, and only what is needed in it
                for path in needed:
                    inside = [closed, *Path(path).relative_to(closed).parts]
                    steps += [(_DIRECTORY, "", os.path.join(*inside[: i + 1]), "") for i in range(1, len(inside))]
                    steps.append((_BIND, path, path, ""))
        package_data = str(Path(__file__).parents[1] / "data")
        for path in (package_data, *self.config.hidden):
            if os.path.isdir(path):
                steps.append((_TMPFS, "", os.path.realpath(path), "mode=0755,size=4k"))
        owner = "" if uid is None else f",uid={uid},gid={uid}"
        size = "" if limits.work_bytes is None else f",size={limits.work_bytes}"
        if os.path.isdir("/dev/shm"):
            steps.append((_TMPFS, "", "/dev/shm", f"mode=0700,nr_inodes=65536{owner}{size}"))
        if limits.work_bytes is not None:
            steps.append((_TMPFS, "", work_dir, f"mode=0700,nr_inodes=65536{owner}{size}"))
        if "private_proc" in self.profile.active:
            steps.append((_PROC, "", "/proc", ""))
        return steps

    def with_config(self, **changes: Any) -> Sandbox:
        """The same sandbox with some fields of its configuration replaced."""
        return Sandbox(replace(self.config, **changes))


def continue_sandboxed(spec: Mapping[str, Any], run: Callable[[list[int]], int | None]) -> NoReturn:
    """In the sandboxed process: its environment, the callable, and an end that runs nothing of the parent's."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(line.split("=", 1) for line in spec["environment"])
        tempfile.tempdir = None  # the parent's, if it has looked for one; ours is in the environment
        result = run(list(range(3, 3 + len(spec["descriptors"]))))
        code = result if isinstance(result, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _remove_tree(path: str) -> None:
    """Remove a work directory, whatever permissions the runner gave to what it left in it."""
    if os.geteuid() != 0:
        for directory, names, _ in os.walk(path):
            for name in names:
                inside = os.path.join(directory, name)
                if not os.path.islink(inside):
                    os.chmod(inside, 0o700)
    shutil.rmtree(path)
