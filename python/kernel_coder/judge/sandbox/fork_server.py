"""A server that forks sandboxed processes from a parent process that has imported all modules already.

    with ForkServer(Sandbox(), modules=["torch", "triton"]) as server:
        with server.start("my_package.runner:main", fds=[channel_fd]) as process:
            ...

The parent imports the modules without using CUDA. It is trusted and runs no candidate's code. Each runner is a fork of
it. Every layer of the sandbox is applied to the fork before the named function is called with the descriptors that
were passed on: `main(fds: list[int]) -> int | None`.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from kernel_coder import _C
from kernel_coder.judge.sandbox.config import Limits
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.sandbox.process import Process
from kernel_coder.judge.sandbox.sandbox import Sandbox

_MESSAGE_BYTES = 1 << 20
"""Upper limit of one message between the Supervisor and the parent, in bytes. The largest message is a specification
with its environment and paths, some ten thousand bytes."""

_MAX_FDS = 250
"""Upper limit of the descriptors in one message. Linux allows 253."""

_OWN_FDS = 8
"""Number of these that the server may need itself: lifeline, report and control groups."""

CLOSE_S = 5.0
"""Time, in seconds, to wait until the parent ends after its socket was closed. Then it is killed."""


class ForkServer:
    """The Supervisor's side of the server. Thread-safe; a context manager.

    Args:
        sandbox: the sandbox of the processes that are started.
        modules: modules to import in the parent, once.
        search: folders that the parent searches before the Supervisor's own search path. The current directory is not
            searched.
        environment: the parent's environment variables besides PATH, LANG and PYTHONDONTWRITEBYTECODE.
        start_timeout_s: time limit for the imports in seconds.

    Raises:
        SandboxError: the parent could not import a module, or importing it used a GPU or started a thread.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        modules: Sequence[str] = (),
        *,
        search: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        self.sandbox = sandbox
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MESSAGE_BYTES)
        self._socket = ours
        path = [*search, *(entry for entry in sys.path if entry and os.path.realpath(entry) != os.getcwd())]
        with theirs:
            boot = (
                f"import sys; sys.path[:] = {path!r}\n"
                "from kernel_coder.judge.sandbox.fork_server import serve\n"
                f"serve({theirs.fileno()}, {list(modules)!r})\n"
                "import os; os._exit(0)"  # at a normal exit Triton 3.9 prints what it did not free
            )
            own = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
            self._parent = subprocess.Popen(
                [sys.executable, "-I", "-B", "-c", boot],  # -B: no bytecode of an earlier source with the same name
                pass_fds=[theirs.fileno()],
                env=own | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        self._socket.settimeout(start_timeout_s)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the parent."""
        return self._parent.pid

    def start(
        self,
        target: str,
        *,
        fds: Sequence[int] = (),
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 30.0,
        sandbox: Sandbox | None = None,
    ) -> Process:
        """Fork a process that calls a function with its descriptors.

        Args:
            target: the function, as ``module:function``.
            fds: descriptors to pass on. They have the numbers 3, 4, ... in the process.
            limits: limits of the process.
            environment: the process's environment variables, besides those of the sandbox's configuration.
            start_timeout_s: time limit in seconds until every layer of the sandbox is in place.
            sandbox: a sandbox to use instead of the server's.

        Raises:
            SandboxError: the process could not be started.
        """
        if target.count(":") != 1:
            raise ValueError(f"target must be 'module:function'; got '{target}'")
        if len(fds) > _MAX_FDS - _OWN_FDS:
            raise ValueError(f"at most {_MAX_FDS - _OWN_FDS} descriptors can be handed over; got {len(fds)}")
        process, spec, theirs = (sandbox or self.sandbox).prepare(limits or Limits(), environment or {})
        try:
            with theirs:
                spec["argv"], spec["descriptors"] = [], list(fds)
                sent = [spec["lifeline"], spec["report"], *spec["cgroup_procs"], *fds]
                if spec["cgroup_kill"] >= 0:
                    sent.append(spec["cgroup_kill"])
                request = json.dumps({"target": target, "spec": spec, "sent": sent}).encode()
                with self._lock:
                    self._socket.settimeout(start_timeout_s)
                    pid, pidfd = self._request(request, sent)
            process.attach(pid, pidfd)
            process.await_start(start_timeout_s)
        except BaseException:
            process.close()
            raise
        return process

    def _request(self, request: bytes, fds: Sequence[int]) -> tuple[int, int]:
        try:
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        except OSError as error:
            raise SandboxError(f"no request could be sent to the fork server: {error}") from error
        answer, received = self._answer()
        return answer["pid"], received[0]

    def _answer(self) -> tuple[dict[str, Any], list[int]]:
        try:
            message, fds, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, 1)
        except OSError as error:
            raise SandboxError(f"the fork server did not answer: {error}") from error
        if not message:
            raise SandboxError(f"the fork server ended: {self._parent.wait(10)}")
        answer = json.loads(message)
        if "error" in answer:
            raise SandboxError(f"the fork server: {answer['error']}")
        return answer, fds

    def close(self) -> None:
        """End the parent. Processes that it started live until their own `Process` is closed."""
        self._socket.close()
        try:
            self._parent.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._parent.kill()
            self._parent.wait()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- in the parent -------------------------------------------------------------------------------------------------


def serve(fd: int, modules: Sequence[str]) -> None:
    """Import the modules, then fork on request until the Supervisor closes its end of the socket `fd`."""
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for name in modules:
            importlib.import_module(name)
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            raise RuntimeError(f"importing {', '.join(modules)} initialised CUDA, which does not survive a fork")
        if _opened_a_gpu():
            raise RuntimeError(f"importing {', '.join(modules)} opened a GPU, which does not survive a fork")
        if threading.active_count() > 1:
            raise RuntimeError(f"importing {', '.join(modules)} started threads, which do not survive a fork")
    except BaseException as error:
        _reply(connection, {"error": f"{type(error).__name__}: {error}"})
        return
    gc.collect()
    gc.freeze()  # otherwise garbage collection in a fork touches, and so copies, the memory of all modules
    _reply(connection, {"ready": True})
    keepers: dict[int, int] = {}  # pidfd to pid
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready in keepers:
                poller.unregister(ready)
                os.close(ready)
                os.waitpid(keepers.pop(ready), 0)
                continue
            message, fds, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, _MAX_FDS)
            if not message:
                return
            try:
                pid, pidfd = _fork_runner(json.loads(message), fds)
            except Exception as error:
                _reply(connection, {"error": f"{type(error).__name__}: {error}"})
                continue
            finally:
                for received in fds:
                    os.close(received)
            keepers[pidfd] = pid
            poller.register(pidfd, select.POLLIN)
            _reply(connection, {"pid": pid}, [pidfd])


def _opened_a_gpu() -> bool:
    """Return whether this process has a GPU's device node open, even if torch did not open it."""
    names = (
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    )
    return any(name.startswith("/dev/nvidia") for name in names)


def _reply(connection: socket.socket, answer: dict[str, Any], fds: Sequence[int] = ()) -> None:
    socket.send_fds(connection, [json.dumps(answer).encode()], list(fds))


def _fork_runner(request: dict[str, Any], fds: list[int]) -> tuple[int, int]:
    """Fork as requested. Return only in the parent."""
    here = dict(zip(request["sent"], fds, strict=True))
    spec = request["spec"]
    for name in ("lifeline", "report", "cgroup_kill"):
        spec[name] = here.get(spec[name], -1)
    for name in ("cgroup_procs", "descriptors"):
        spec[name] = [here[sent] for sent in spec[name]]
    is_sandboxed, pid, pidfd = _C.sandbox.spawn(spec)
    if is_sandboxed:
        _run_sandboxed(spec, request["target"])
    return pid, pidfd


# ---- in the sandboxed process --------------------------------------------------------------------------------------


def _run_sandboxed(spec: Mapping[str, Any], target: str) -> NoReturn:
    """Set the environment, call the function, and exit without running exit handlers of the parent."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(line.split("=", 1) for line in spec["environment"])
        tempfile.tempdir = None  # forget the parent's temporary directory; TMPDIR names the one of this process
        module, _, name = target.partition(":")
        function: Callable[[list[int]], int | None] = getattr(importlib.import_module(module), name)
        result = function(list(range(3, 3 + len(spec["descriptors"]))))
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
