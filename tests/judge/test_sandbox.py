"""The sandbox against hostile programs, as the user that runs the tests."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_coder
import pytest
from kernel_coder import _C
from kernel_coder.judge.sandbox.config import DEFAULT_REQUIRED, Limits, SandboxConfig
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.sandbox.fork_server import ForkServer
from kernel_coder.judge.sandbox.probe import probe
from kernel_coder.judge.sandbox.process import Process, ProcessExit
from kernel_coder.judge.sandbox.profile import LAYERS
from kernel_coder.judge.sandbox.sandbox import Sandbox
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, Frame, ProtocolBreach, SharedBuffer

IS_ROOT = os.geteuid() == 0
NAMESPACES = frozenset({"user_namespace", "pid_namespace", "net_namespace", "ipc_namespace", "mount_namespace"})
NOBODY = 65534
IS_NESTED = "KC_SANDBOX_NESTED" in os.environ  # the last test runs these tests again as the user nobody

#: Every hostile program begins with this code.
PRELUDE = """
import ctypes, errno, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def refused(attempt, *allowed):
    try:
        attempt()
    except OSError as error:
        print(errno.errorcode[error.errno])
    else:
        print("done")
"""


def program(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)]


def run(
    sandbox: Sandbox, code: str, *arguments: object, fds: tuple[int, ...] = (), **limits: object
) -> tuple[ProcessExit, str]:
    """Run a program that ends within its limits. Return its end and its output."""
    chosen = Limits(**{"wall_s": 10.0, **limits})  # type: ignore[arg-type]
    with sandbox.start(program(code, *arguments), fds=fds, limits=chosen) as process:
        ended = process.wait(20)
        assert not process.stderr.written, process.stderr.text
        return ended, process.stdout.text


def processes_with(token: str) -> list[int]:
    """Return the processes, except zombies, that have the token in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if token.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def children() -> set[str]:
    """Return the children of this process, including zombies."""
    return {child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}


def lacks(sandbox: Sandbox, *layers: str) -> bool:
    """Return whether none of the layers that the test needs is active. The probe then has to say why."""
    if sandbox.profile.active & set(layers):
        return False
    assert all(sandbox.profile[layer].detail for layer in layers)
    return True


def until(holds: Callable[[], bool], timeout_s: float = 3.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def work_root(open_folder: Callable[[str], Path]) -> str:
    return str(open_folder("work"))


@pytest.fixture(scope="module", params=["every layer", "no namespaces"])
def sandbox(request: pytest.FixtureRequest, work_root: str) -> Sandbox:
    """Each hostile program runs twice: with every layer of this machine, and without namespaces."""
    without = frozenset() if request.param == "every layer" else NAMESPACES
    require = DEFAULT_REQUIRED & probe().active  # each test checks for the layer that it needs
    config = SandboxConfig(work_root=work_root, without=without, require=require)
    if request.param == "no namespaces" and "uid" in probe(config).active:
        try:
            return Sandbox(config)
        except SandboxError as error:  # for example for a Python in /root without a mount namespace
            if "is closed to other users" not in str(error):
                raise
            config = replace(config, without=NAMESPACES - {"mount_namespace"})
    return Sandbox(config)


@pytest.fixture(scope="module")
def strongest(work_root: str) -> Sandbox:
    return Sandbox(SandboxConfig(work_root=work_root, require=DEFAULT_REQUIRED & probe().active))


# ---- probing -------------------------------------------------------------------------------------------------------


def test_every_layer_is_active_or_says_why_not() -> None:
    profile = probe()
    assert [layer.name for layer in profile.layers] == list(LAYERS)
    assert all(layer.detail for layer in profile.layers)
    assert set(profile.as_dict()) == set(LAYERS)
    print(f"\nuid {os.geteuid()}\n{profile}")


def test_the_probe_agrees_with_what_the_kernel_says() -> None:
    profile = probe()
    assert ("uid" in profile.active) == IS_ROOT
    assert ("user_namespace" in profile.active) <= (not IS_ROOT)
    version, _ = _C.sandbox.landlock_version()
    assert ("landlock" in profile.active) == (version > 0)
    assert ("landlock_network" in profile.active) == (version >= 4)
    assert ("landlock_signals" in profile.active) == (version >= 6)
    assert ("process_limit" in profile.active) == (not IS_ROOT or "uid" in profile.active)


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_a_layer_that_is_required_and_missing_is_named_with_the_way_to_get_it(layer: str) -> None:
    config = SandboxConfig(without=frozenset({layer}), require=frozenset({layer}))
    profile = probe(config)
    assert layer not in profile.active
    with pytest.raises(SandboxError) as refusal:
        Sandbox(config)
    assert f"{layer} (switched off by the configuration) needs {LAYERS[layer]}" in str(refusal.value) or (
        layer in str(refusal.value) and LAYERS[layer] in str(refusal.value)
    )


def test_sandbox_below_the_default_minimum_raises_and_names_the_missing_layers() -> None:
    missing = DEFAULT_REQUIRED - probe().active
    if not missing:
        Sandbox()
        return
    with pytest.raises(SandboxError) as refusal:
        Sandbox()
    assert all(layer in str(refusal.value) for layer in missing)


def test_a_layer_that_does_not_exist_cannot_be_required() -> None:
    with pytest.raises(ValueError, match="secomp"):
        Sandbox(SandboxConfig(require=frozenset({"secomp"})))
    with pytest.raises(ValueError, match="secomp"):
        probe(SandboxConfig(without=frozenset({"secomp"})))


# ---- the process's user and environment -----------------------------------------------------------------------------
def test_the_process_has_no_privileges(sandbox: Sandbox) -> None:
    code = """
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    print(os.getuid(), os.getgid(), os.getgroups() if os.getuid() >= 60600 else [], os.getsid(0) == os.getpid())
    print({status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Amb")}, status["NoNewPrivs"], status["Seccomp"])
    """
    _, out = run(sandbox, code)
    who, powers = out.splitlines()
    if IS_ROOT:
        uid, gid, *rest = who.split()
        assert int(uid) == int(gid) >= 60600
        assert rest == ["[]", "True"]
    else:
        assert who.split() == [str(os.geteuid()), str(os.getegid()), "[]", "True"]
    assert powers == f"{{'0000000000000000'}} 1 {2 if 'seccomp' in sandbox.profile.active else 0}"


def test_runners_alive_together_have_different_uids_if_root(strongest: Sandbox) -> None:
    with strongest.start(program("time.sleep(60)")) as first, strongest.start(program("time.sleep(60)")) as second:
        if IS_ROOT:
            assert first.uid != second.uid
        else:
            assert first.uid is second.uid is None
        assert first.work_dir != second.work_dir


def test_another_supervisor_that_probes_kills_no_process(work_root: str) -> None:
    """A probe uses the first uid of the range without reserving it."""
    code = "from kernel_coder.judge.sandbox.probe import probe; print(len(probe().active))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    sandbox = Sandbox(SandboxConfig(work_root=work_root, uids=(60600, 60604), require=frozenset()))
    with contextlib.ExitStack() as stack:
        runners = []
        for _ in range(4):
            with contextlib.suppress(SandboxError):  # another process has the uid just now
                runners.append(stack.enter_context(sandbox.start(program("time.sleep(60)"))))
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.DEVNULL)
        assert all(runner.running for runner in runners)


def test_process_sees_only_the_allowed_environment_variables(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_TEST", "1")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    with sandbox.start(program("print(sorted(os.environ))"), environment={"KC_EXTRA": "1"}) as process:
        process.wait(10)
        names = eval(process.stdout.text)
    allowed = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONDONTWRITEBYTECODE", "KC_EXTRA", "LC_CTYPE", "USER"}
    assert set(names) <= allowed
    assert "HOME" in names


def test_descriptors_that_were_not_handed_over_are_closed(sandbox: Sandbox) -> None:
    secret = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        with SharedBuffer(4096) as buffer:
            _, out = run(sandbox, "print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])", fds=(buffer.fd,))
    finally:
        os.close(secret)
    assert out.strip() == "[0, 1, 2, 3]"


def test_a_thread_can_be_named_through_proc(sandbox: Sandbox) -> None:
    """libcuda does so, and reports error 304 where it cannot."""
    ended, out = run(sandbox, "open('/proc/self/comm', 'w').write('kc'); print(open('/proc/self/comm').read())")
    assert (ended.exit_code, out.strip()) == (0, "kc")


def test_limits_reach_the_process(sandbox: Sandbox) -> None:
    code = """
    import resource
    print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE),
          resource.getrlimit(resource.RLIMIT_CPU), sorted(os.sched_getaffinity(0)))
    """
    core = min(os.sched_getaffinity(0))
    _, out = run(sandbox, code, open_files=100, cpu_s=5, cores=(core,))
    assert out.strip() == f"(0, 0) (100, 100) (5, 6) [{core}]"


def test_program_that_does_not_exist_raises_file_not_found(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        sandbox.start(["no-such-program"])


def test_a_program_that_cannot_be_opened_is_named_as_a_failed_setup(sandbox: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    with pytest.raises(SandboxError, match="step exec: Permission denied"):
        sandbox.start([str(script)])


# ---- how a process ended -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code", "ended_signal", "reason"),
    [
        ("sys.exit(0)", 0, None, "exit code 0"),
        ("os._exit(7)", 7, None, "exit code 7"),
        ("os.abort()", None, signal.SIGABRT, "ended by SIGABRT"),
        ("ctypes.string_at(8)", None, signal.SIGSEGV, "ended by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", None, signal.SIGKILL, "ended by SIGKILL"),
    ],
)
def test_end_of_a_process_is_decoded_and_noticed_at_once(
    sandbox: Sandbox, code: str, exit_code: int | None, ended_signal: int | None, reason: str
) -> None:
    began = time.monotonic()
    ended, _ = run(sandbox, code, wall_s=60.0)
    assert time.monotonic() - began < 5
    assert (ended.exit_code, ended.signal, ended.ended_by) == (exit_code, ended_signal, "itself")
    assert ended.reason.startswith(reason)


@pytest.mark.alone
def test_cpu_time_is_bounded_and_reported(strongest: Sandbox) -> None:
    ended, _ = run(strongest, "while True: pass", cpu_s=1)
    assert ended.signal == signal.SIGXCPU
    assert 0.8 < ended.user_s + ended.system_s < 4


@pytest.mark.alone
@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(1000)",
        "for s in (1, 2, 3, 10, 12, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "while True: pass",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["sleeps forever", "ignores SIGTERM", "computes forever", "stops itself"],
)
def test_wall_limit_ends_a_process_that_sleeps_computes_or_ignores_signals(sandbox: Sandbox, code: str) -> None:
    began = time.monotonic()
    ended, _ = run(sandbox, code, wall_s=0.2)
    assert ended.ended_by == "wall_limit"
    assert time.monotonic() - began < 2.3


@pytest.mark.alone
def test_waiting_has_a_deadline_and_killing_is_prompt(sandbox: Sandbox) -> None:
    with sandbox.start(program("time.sleep(1000)")) as process:
        with pytest.raises(TimeoutError):
            process.wait(0.05)
        assert process.running
        began = time.monotonic()
        assert process.kill_tree().ended_by == "supervisor"
        assert time.monotonic() - began < 1
        assert not process.running


# ---- nothing outlives the tree -------------------------------------------------------------------------------------

DAEMON = """
for step in range(2):
    if os.fork():
        if step == 0:
            time.sleep(0.1)
            print("parent leaves", flush=True)
        os._exit(0)
    os.setsid()
for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
while True: time.sleep(1)
"""


@pytest.mark.alone
def test_a_double_forked_daemon_in_its_own_session_is_gone(sandbox: Sandbox) -> None:
    if lacks(sandbox, "kill_tree"):
        return
    token = f"daemon-{os.urandom(8).hex()}"
    ended, out = run(sandbox, DAEMON, token)
    assert out == "parent leaves\n"
    assert ended.left_running
    assert not processes_with(token)


@pytest.mark.alone
def test_a_fork_bomb_is_limited_and_gone(sandbox: Sandbox) -> None:
    if lacks(sandbox, "process_limit"):
        return
    token = f"bomb-{os.urandom(8).hex()}"
    code = """
    made = 0
    try:
        while True:
            if os.fork() == 0:
                time.sleep(1000)
            made += 1
    except BlockingIOError:
        print(made, flush=True)
    while True:
        try:
            os.fork()
        except BlockingIOError:
            pass
    """
    with sandbox.start(program(code, token), limits=Limits(wall_s=0.6, processes=40)) as process:
        ended = process.wait(20)
        assert int(process.stdout.text.split()[0]) <= 40
    assert ended.ended_by == "wall_limit"
    assert not processes_with(token)


@pytest.mark.alone
def test_the_tree_dies_with_its_supervisor(strongest: Sandbox) -> None:
    token = f"orphan-{os.urandom(8).hex()}"
    code = f"""
import sys, time
from kernel_coder.judge.sandbox.sandbox import Sandbox
process = Sandbox().start([sys.executable, "-I", "-S", "-c", "import time; time.sleep(1000)", "{token}"])
print("started", flush=True)
time.sleep(1000)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    supervisor = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline() == b"started\n"
    assert len(processes_with(token)) >= 2
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    assert until(lambda: not processes_with(token))


# ---- what cannot be reached ----------------------------------------------------------------------------------------


def test_files_outside_the_work_directory_cannot_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    if lacks(sandbox, "landlock"):
        return
    code = """
    for path in sys.argv[1:]:
        refused(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT)))
    open("inside", "w").write("kept")
    print(os.listdir("."))
    """
    tmp_path.chmod(0o777)
    package = Path(_C.__file__).parent
    outside = [
        tmp_path / "file",
        package / "_core.py",
        package / "planted.py",
        "/etc/planted",
        "/tmp/planted",
        "/usr/planted",
    ]
    _, out = run(sandbox, code, *outside)
    *answers, inside = out.splitlines()
    assert set(answers) <= {"EACCES", "EROFS", "ENOENT", "EPERM"}
    assert len(answers) == len(outside)
    assert inside == "['inside']"
    assert not (tmp_path / "file").exists()


def test_files_outside_the_list_cannot_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    if lacks(sandbox, "landlock"):
        return
    secret = tmp_path / "reference.py"
    secret.write_text("answer = 42")
    secret.chmod(0o644)
    code = "for path in sys.argv[1:]: refused(lambda: open(path).read())"
    _, out = run(sandbox, code, secret, "/etc/hosts", Path.home() / ".bashrc", "/var/log/dpkg.log", "/root/.profile")
    assert set(out.split()) <= {"EACCES", "ENOENT"}


def test_this_package_can_be_read_and_its_data_cannot(sandbox: Sandbox) -> None:
    """A candidate must be able to import the package, and must not see the packaged tasks with their solutions."""
    if lacks(sandbox, "mount_namespace"):
        return
    package = Path(kernel_coder.__file__).parent
    assert any((package / "data").iterdir())
    code = "print(bool(open(sys.argv[1] + '/interpreter.py').read()), os.listdir(sys.argv[1] + '/data'))"
    _, out = run(sandbox, code, package)
    assert out.strip() == "True []"


def test_another_runners_directory_cannot_be_read(sandbox: Sandbox) -> None:
    if lacks(sandbox, "landlock", "uid"):
        return
    owner = "open('mine', 'w').write('x'); print('ready', flush=True); time.sleep(60)"
    code = """
    refused(lambda: os.listdir(sys.argv[1]))
    refused(lambda: open(sys.argv[1] + "/mine").read())
    refused(lambda: os.listdir(os.path.dirname(sys.argv[1])))
    """
    with sandbox.start(program(owner)) as process:
        assert until(lambda: process.stdout.text == "ready\n")
        _, out = run(sandbox, code, process.work_dir)
    assert set(out.split()) <= {"EACCES", "ENOENT"}


@pytest.mark.parametrize(
    "without", [set(), {"seccomp"}, {"seccomp", "net_namespace"}], ids=["all", "no filter", "Landlock"]
)
def test_the_network_is_out_of_reach(work_root: str, without: set[str]) -> None:
    """The filter, the namespace and Landlock each block TCP on their own, if they are active."""
    config = SandboxConfig(work_root=work_root, without=frozenset(without), require=frozenset())
    sandbox = Sandbox(config)
    if not sandbox.profile.active & {"seccomp", "net_namespace", "landlock_network"}:
        assert "landlock_network" not in sandbox.profile.active, "no layer is left to test, and the probe says so"
        return
    code = """
    def connect():
        with socket.socket() as s:
            s.settimeout(2)
            s.connect(("127.0.0.1", int(sys.argv[1])))
    refused(connect)
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        _, out = run(sandbox, code, server.getsockname()[1])
        with pytest.raises(TimeoutError):
            server.accept()
    assert out.strip() in {"EACCES", "EPERM", "ENETUNREACH", "ECONNREFUSED"}


def test_sockets_of_every_family_are_refused(sandbox: Sandbox) -> None:
    if lacks(sandbox, "seccomp"):
        return
    code = """
    families = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_VSOCK, socket.AF_PACKET
    for family in families:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            refused(lambda: socket.socket(family, kind).close())
    a, b = socket.socketpair()
    a.send(b"x"); print(b.recv(1) == b"x")
    """
    _, out = run(sandbox, code)
    assert out.split() == ["EACCES"] * 12 + ["True"]


def test_a_gpu_runner_may_make_a_local_socket_but_not_reach_a_service(work_root: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    sandbox = Sandbox(SandboxConfig(work_root=work_root, gpu=0, require=frozenset()))
    if lacks(sandbox, "seccomp"):
        return
    code = """
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    refused(lambda: s.connect(sys.argv[1]))
    refused(lambda: s.sendto(b"x", sys.argv[1]))
    refused(lambda: s.sendmsg([b"x"], [], 0, sys.argv[1]))
    refused(lambda: socket.socket(socket.AF_INET))
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(str(tmp_path / "service"))
        (tmp_path / "service").chmod(0o777)
        _, out = run(sandbox, code, tmp_path / "service")
    assert out.split() == ["EACCES"] * 4
    with pytest.raises(ValueError, match="address_space_bytes must be None for a GPU runner"):
        sandbox.start(program(""), limits=Limits(address_space_bytes=1 << 30))


def test_the_parent_cannot_be_traced_read_or_signalled(sandbox: Sandbox) -> None:
    if lacks(sandbox, "seccomp"):
        return
    code = """
    PTRACE_ATTACH = 16
    for pid in (os.getppid(), int(sys.argv[1])):
        print(libc.ptrace(PTRACE_ATTACH, pid, 0, 0) == -1)
        if pid > 0:
            for name in ("mem", "environ", "maps", "fd/0", "root/etc/hostname"):
                refused(lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
            refused(lambda: os.kill(pid, signal.SIGKILL))
            refused(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
        iovec = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
        print(libc.process_vm_readv(pid, iovec, 1, iovec, 1, 0) == -1)
    """
    _, out = run(sandbox, code, os.getpid())
    assert "done" not in out
    assert "False" not in out
    assert set(out.split()) <= {"True", "EPERM", "EACCES", "ENOENT", "ESRCH", "EIO", "EINVAL"}


def test_all_processes_cannot_be_killed_at_once(sandbox: Sandbox) -> None:
    if lacks(sandbox, "seccomp"):
        return
    _, out = run(sandbox, "refused(lambda: os.kill(-1, signal.SIGKILL))")
    assert out.strip() == "EPERM"


def test_own_children_can_be_killed_where_the_supervisor_is_out_of_reach(sandbox: Sandbox) -> None:
    if lacks(sandbox, "seccomp"):
        return
    code = """
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    refused(lambda: os.kill(pid, signal.SIGKILL))
    """
    _, out = run(sandbox, code)
    protected = sandbox.profile.active & {"pid_namespace", "uid"}
    assert out.strip() == ("done" if protected else "EPERM")


def test_denied_calls_are_denied(sandbox: Sandbox) -> None:
    if lacks(sandbox, "seccomp"):
        return
    code = """
    CLONE_NEWUSER = 0x10000000
    print(libc.unshare(CLONE_NEWUSER), errno.errorcode[ctypes.get_errno()])
    print(libc.mount(b"none", b".", b"tmpfs", 0, None), errno.errorcode[ctypes.get_errno()])
    print(libc.personality(0x40000), errno.errorcode[ctypes.get_errno()])
    print(libc.personality(0xffffffff))
    print(libc.shmget(0, 4096, 0o1600), errno.errorcode[ctypes.get_errno()])
    io_uring_setup = 425
    print(libc.syscall(io_uring_setup, 1, None), errno.errorcode[ctypes.get_errno()])
    clone, number = (56, 101) if os.uname().machine == "x86_64" else (220, 117)
    print(libc.syscall(clone, CLONE_NEWUSER | 17, None, None, None, None), errno.errorcode[ctypes.get_errno()])
    """
    _, out = run(sandbox, code)
    lines = out.splitlines()
    assert [line.split()[-1] for line in lines] == ["EPERM", "EPERM", "EPERM", "0", "EPERM", "ENOSYS", "EPERM"]


def test_each_denied_call_has_a_reason() -> None:
    calls = dict(_C.sandbox.denied_calls())
    assert {
        "ptrace",
        "process_vm_readv",
        "pidfd_send_signal",
        "perf_event_open",
        "bpf",
        "keyctl",
        "mount",
    } <= calls.keys()
    assert all(calls.values())


@pytest.mark.alone
def test_landlock_alone_blocks_signals_if_the_kernel_supports_it(work_root: str) -> None:
    """The uid and the pid namespace are the same, and there is no filter. Only Landlock can block the signal."""
    without = NAMESPACES | {"seccomp", "uid"}
    config = SandboxConfig(work_root=work_root, without=without, require=frozenset())
    sandbox = Sandbox(config)
    victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    try:
        _, out = run(sandbox, "refused(lambda: os.kill(int(sys.argv[1]), signal.SIGKILL))", victim.pid)
        # If root starts a Runner without a uid of its own, the Runner has no capabilities, but still the uid of root.
        assert out.strip() == ("EPERM" if "landlock_signals" in sandbox.profile.active else "done")
    finally:
        victim.kill()
        victim.wait()


# ---- floods --------------------------------------------------------------------------------------------------------


def test_only_both_ends_of_a_gigabyte_on_stdout_are_kept(strongest: Sandbox) -> None:
    code = """
    os.write(1, b"beginning")
    block = b"x" * (1 << 20)
    for _ in range(1024):
        os.write(1, block)
    os.write(1, b"end")
    """
    limits = Limits(wall_s=20, output_head_bytes=1000, output_tail_bytes=500)
    with strongest.start(program(code), limits=limits) as process:
        assert process.wait(30).exit_code == 0
        output = process.stdout
    assert output.written == (1 << 30) + 12
    assert output.head == b"beginning" + b"x" * 991
    assert output.tail == b"x" * 497 + b"end"
    assert f"[... {output.written - 1500} bytes left out ...]" in output.text


def test_short_output_is_kept_whole() -> None:
    with Sandbox().start(program("print('out'); print('err', file=sys.stderr)")) as process:
        process.wait(10)
        assert (process.stdout.text, process.stderr.text) == ("out\n", "err\n")


def test_memory_of_a_process_is_bounded(sandbox: Sandbox) -> None:
    code = """
    kept = []
    try:
        while True:
            kept.append(bytearray(1 << 24))
    except MemoryError:
        print(len(kept) < 16)
    """
    _, out = run(sandbox, code, data_bytes=1 << 27)
    assert out.strip() == "True"
    _, out = run(sandbox, code, address_space_bytes=1 << 27)
    assert out.strip() == "True"


def test_memory_of_the_tree_is_bounded_where_there_is_a_control_group(sandbox: Sandbox) -> None:
    code = """
    for _ in range(3):
        os.fork()
    kept = []
    while True:
        kept.append(bytearray(b"x") * (1 << 24))
    """
    limits = Limits(memory_bytes=256 << 20, wall_s=10)
    if "memory_cgroup" not in sandbox.profile.active:
        assert sandbox.profile["memory_cgroup"].detail
        with pytest.raises(SandboxError, match="memory_bytes cannot be held without memory_cgroup"):
            sandbox.start(program(code), limits=limits)
        return
    with sandbox.start(program(code), limits=limits) as process:
        ended = process.wait(20)
    assert ended.out_of_memory
    assert ended.reason == "killed for using too much memory"


def test_files_are_bounded(sandbox: Sandbox) -> None:
    code = """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    def fill(name):
        with open(name, "wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
    refused(lambda: fill("large"))
    os.unlink("large")
    refused(lambda: [fill(str(i)) for i in range(3)])
    """
    _, out = run(sandbox, code, file_bytes=(40 << 20))
    assert out.split()[0] == "EFBIG"
    _, out = run(sandbox, code, work_bytes=(100 << 20))
    assert out.split()[-1] == ("ENOSPC" if "mount_namespace" in sandbox.profile.active else "done")


def test_descriptors_are_bounded_and_all_can_be_closed(sandbox: Sandbox) -> None:
    code = """
    refused(lambda: [os.dup(0) for _ in range(100000)])
    sys.stdout.flush()
    os.closerange(0, 1000)
    os._exit(3)
    """
    ended, out = run(sandbox, code, open_files=256)
    assert (ended.exit_code, out.strip()) == (3, "EMFILE")


# ---- buffers and frames --------------------------------------------------------------------------------------------


def test_a_shared_buffer_carries_bytes_and_cannot_be_resized(sandbox: Sandbox) -> None:
    code = """
    import mmap
    for size in (0, 4095, 1 << 30):
        refused(lambda: os.ftruncate(3, size))
    refused(lambda: os.pwrite(3, b"x", 4096))
    memory = mmap.mmap(3, 4096)
    memory[:5] = memory[:5].upper()
    """
    with SharedBuffer(4096) as buffer:
        buffer.view[:5] = b"hello"
        _, out = run(sandbox, code, fds=(buffer.fd,))
        assert out.split() == ["EPERM"] * 4
        assert bytes(buffer.view[:5]) == b"HELLO"


def test_frames_go_both_ways_and_anything_else_is_a_breach(sandbox: Sandbox) -> None:
    code = """
    s = socket.socket(fileno=3)
    s.send(s.recv(64)[:4] + bytes(60))
    for size in (1, 63, 65, 100000):
        s.send(bytes(size))
    sys.stdin = None
    """
    ours, theirs = Channel.pair()
    try:
        with sandbox.start(program(code), fds=[theirs.fd]) as process:
            theirs.close()
            ours.send(41, status=-1, values=(2**62,))
            assert ours.receive(timeout_s=5, pidfd=process.pidfd) == Frame(41, 0, (0,) * 7)
            for _ in range(4):
                with pytest.raises(ProtocolBreach):
                    ours.receive(timeout_s=5, pidfd=process.pidfd)
            with pytest.raises(ChannelClosed):
                ours.receive(timeout_s=5, pidfd=process.pidfd)
    finally:
        ours.close()


def test_the_death_of_a_runner_is_seen_while_waiting_for_its_frame(strongest: Sandbox) -> None:
    ours, theirs = Channel.pair()
    try:
        with strongest.start(program("time.sleep(0.2); os._exit(0)"), fds=[theirs.fd]) as process:
            began = time.monotonic()  # the test keeps the other end open, so only the pidfd shows the death
            with pytest.raises(ChannelTimeout):
                ours.receive(timeout_s=0.01, pidfd=process.pidfd)
            with pytest.raises(ChannelClosed):
                ours.receive(timeout_s=30, pidfd=process.pidfd)
            assert time.monotonic() - began < 5
    finally:
        ours.close()
        theirs.close()


def test_a_frame_carries_seven_values_at_most() -> None:
    ours, theirs = Channel.pair()
    with pytest.raises(ValueError, match="at most 7 values; got 8"):
        ours.send(1, values=(0,) * 8)
    ours.close()
    theirs.close()


# ---- the fork server -----------------------------------------------------------------------------------------------

RUNNER = """
import os, sys, time
from kernel_coder.judge.wire.channel import Channel

imported_in = os.getpid()

def report(fds):
    descriptors = len(os.listdir("/proc/self/fd")) - 1
    forked, has_torch = imported_in != os.getpid(), "torch" in sys.modules
    Channel(fds[0]).send(1, values=(os.getuid(), int(forked), int(has_torch), descriptors))

def fails(fds):
    raise RuntimeError("the candidate's mistake")

def exits(fds):
    sys.exit(9)

def hides(fds):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)

def reads(fds):
    for path in ("/etc/hosts", os.path.dirname(os.getcwd())):
        try:
            os.open(path, os.O_RDONLY)
        except OSError as error:
            print(error.errno)
    print(sorted(os.environ), flush=True)

def imports(fds):
    import wave, colorsys
    print(wave.__name__, flush=True)
"""


@pytest.fixture(scope="module")
def server(strongest: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    modules = tmp_path_factory.mktemp("modules")
    (modules / "warm_runner.py").write_text(RUNNER)
    (modules / "broken_module.py").write_text("raise ValueError('cannot be imported')")
    with ForkServer(strongest, modules=["warm_runner", "torch"], search=[str(modules)]) as warm:
        yield warm


@pytest.mark.alone
def test_a_runner_is_forked_from_a_parent_that_has_imported_everything(server: ForkServer) -> None:
    ours, theirs = Channel.pair()
    began = time.monotonic()
    with server.start("warm_runner:report", fds=[theirs.fd]) as process:
        theirs.close()
        uid, forked, has_torch, descriptors = ours.receive(timeout_s=10, pidfd=process.pidfd).values[:4]
        took = time.monotonic() - began
        assert process.wait(10).exit_code == 0
    ours.close()
    assert (forked, has_torch, descriptors) == (1, 1, 4)
    assert uid == (process.uid if IS_ROOT else os.geteuid())
    assert took < 1.0


def test_end_of_a_runner_is_reported_and_its_children_end_too(server: ForkServer) -> None:
    with server.start("warm_runner:fails") as process:
        assert process.wait(10).exit_code == 1
        assert "RuntimeError: the candidate's mistake" in process.stderr.text
    with server.start("warm_runner:exits") as process:
        assert process.wait(10).exit_code == 9
    with server.start("warm_runner:hides") as process:
        assert process.wait(10).left_running
    with server.start("warm_runner:no_such_function") as process:
        assert process.wait(10).exit_code == 1


def test_a_forked_runner_has_the_same_layers(server: ForkServer) -> None:
    with server.start("warm_runner:reads", environment={"KC_EXTRA": "1"}) as process:
        assert process.wait(10).exit_code == 0
        *errors, environment = process.stdout.text.splitlines()
    assert errors == ["13", "13"]
    assert eval(environment) == ["HOME", "KC_EXTRA", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR", "USER"]


def test_a_forked_runner_can_import_more(server: ForkServer) -> None:
    with server.start("warm_runner:imports") as process:
        assert process.wait(10).exit_code == 0, process.stderr.text
        assert process.stdout.text == "wave\n"


def test_a_module_that_cannot_be_imported_is_named(strongest: Sandbox) -> None:
    with pytest.raises(SandboxError, match="ModuleNotFoundError: No module named 'no_such_module_here'"):
        ForkServer(strongest, modules=["no_such_module_here"])


# ---- nothing is left -----------------------------------------------------------------------------------------------

MIXED = {
    "daemon": DAEMON,
    "sleeper": "time.sleep(1000)",
    "stubborn": "for s in (1, 2, 3, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
    "bomb": "while True:\n  try: os.fork()\n  except OSError: pass",
    "crash": "ctypes.string_at(8)",
    "writer": "for i in range(50): os.makedirs(f'a/{i}'); open(f'a/{i}/f', 'w').write('x' * 1000)\nos.chmod('a', 0)",
    "talker": "while True: os.write(1, b'y' * 65536)",
    "closer": "os.closerange(0, 1000); time.sleep(1000)",
    "eater": "kept = []\nwhile True: kept.append(bytearray(1 << 22))",
    "killer": "os.kill(os.getppid(), 9); os.kill(-1, 9)",
}


@pytest.mark.alone
def test_a_hundred_mixed_hostile_runs_leave_nothing(sandbox: Sandbox, work_root: str) -> None:
    token = f"mixed-{os.urandom(8).hex()}"
    limits = Limits(wall_s=0.15, processes=20, data_bytes=1 << 28, file_bytes=1 << 24, work_bytes=1 << 24)

    def groups() -> list[Path]:
        return list(Path("/sys/fs/cgroup").glob(f"**/kernel_coder-{os.getpid()}-*"))

    def held() -> tuple[object, ...]:
        shared_memory, descriptors = (sorted(os.listdir(path)) for path in ("/dev/shm", "/proc/self/fd"))
        return descriptors, children(), os.listdir(work_root), groups(), shared_memory

    before = held()
    repeats = 10 if "pid_namespace" in sandbox.profile.active and not IS_NESTED else 2
    runs = list(MIXED.values()) * repeats
    for start in range(0, len(runs), 10):
        with contextlib.ExitStack() as stack:
            batch: list[Process] = [
                stack.enter_context(sandbox.start(program(code, token), limits=limits))
                for code in runs[start : start + 10]
            ]
            for process in batch:
                process.wait(10)
    assert not processes_with(token)
    assert held() == before
    ended, out = run(sandbox, "print('still working')")
    assert (ended.exit_code, out) == (0, "still working\n")


# ---- the other kind of user ----------------------------------------------------------------------------------------


@pytest.mark.alone
def test_hostile_programs_are_also_stopped_for_an_ordinary_user() -> None:
    """If this user is root, run the hostile programs once more as the user nobody. Otherwise they have run already."""
    if not IS_ROOT:
        assert "uid" not in probe().active
        return
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "KC_SANDBOX_NESTED": "1",
    }
    as_nobody: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": environment, "cwd": "/"}
    # Another interpreter does not read the files that editable installs leave in this environment, so name its folders.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    begin = f"import site, sys; [site.addsitedir(path) for path in {packages!r}]; "
    reach = f"{begin}import kernel_coder, pytest; open({__file__!r})"
    for interpreter in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}"):
        with contextlib.suppress(OSError):
            if subprocess.run([interpreter, "-c", reach], capture_output=True, **as_nobody).returncode == 0:
                break
    else:
        pytest.skip(
            f"uid {NOBODY} can reach no Python 3.{sys.version_info[1]} with kernel_coder and pytest, or not these tests"
        )
    some = "layer_is_active or cannot or denied or refused or daemon or bomb or hundred"
    some = f"({some}) and not imported"  # the fork server's Python reads no editable installs
    # Not in pytest's own folder: other users may not be able to read it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        arguments = ["-q", "-s", "-p", "no:cacheprovider", "--basetemp", f"{folder}/t", __file__, "-k", some]
        command = [interpreter, "-c", f"{begin}import pytest; sys.exit(pytest.main({arguments!r}))"]
        result = subprocess.run(command, capture_output=True, text=True, **as_nobody)
    print(result.stdout)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
