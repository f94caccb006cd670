"""A warm parent: it has imported what runners need, without touching CUDA, and forks a sandboxed runner on request.

    with ForkServer(Sandbox(), modules=["torch", "triton"]) as server:
        with server.start("my_package.runner:main", fds=[channel_fd]) as process:
            ...

The parent is trusted and runs nothing of a candidate's. A runner is its fork, with every layer of the sandbox applied
before the named function is called with the descriptors handed over: `main(fds: list[int]) -> int | None`.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernel_coder import _C
from kernel_coder.judge.sandbox.sandbox import Limits, Process, Sandbox, SandboxError, continue_sandboxed

_MESSAGE_BYTES = 1 << 20
_MAX_FDS = 250


class ForkServer:
    """The supervisor's side. Thread-safe; a context manager.

    `modules` are imported once, in the parent, which has the supervisor's search path with `search` before it and
    without the current directory, and `environment` and nothing else of the supervisor's.
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
                f"from kernel_coder.judge.sandbox.fork_server import serve; serve({theirs.fileno()}, {list(modules)!r})"
            )
            own = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
            self._parent = subprocess.Popen(
                [sys.executable, "-I", "-B", "-c", boot],  # -B: who runs one source after another finds no old bytecode
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
        """The warm parent's."""
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
        """Fork a runner that calls `target`, "module:function", with the descriptors, which are 3, 4, ... there.

        In another `sandbox` than the server's, if one is given.
        """
        if target.count(":") != 1:
            raise ValueError(f"target must be 'module:function'; got '{target}'")
        if len(fds) > _MAX_FDS - 8:
            raise ValueError(f"at most {_MAX_FDS - 8} descriptors can be handed over; got {len(fds)}")
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
                    process.pid, process.pidfd = self._request(request, sent)
            process._cleanup.callback(os.close, process.pidfd)
            process._await_start(start_timeout_s)
        except BaseException:
            process.close()
            raise
        return process

    def _request(self, request: bytes, fds: Sequence[int]) -> tuple[int, int]:
        try:
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        except OSError as error:
            raise SandboxError(f"the fork server takes no request: {error}") from error
        answer, received = self._answer()
        return answer["pid"], received[0]

    def _answer(self) -> tuple[dict[str, Any], list[int]]:
        try:
            message, fds, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, 1)
        except OSError as error:
            raise SandboxError(f"the fork server gives no answer: {error}") from error
        if not message:
            raise SandboxError(f"the fork server ended: {self._parent.wait(10)}")
        answer = json.loads(message)
        if "error" in answer:
            raise SandboxError(f"the fork server: {answer['error']}")
        return answer, fds

    def close(self) -> None:
        """End the warm parent. Runners that it started live on until their own `Process` is closed."""
        self._socket.close()
        try:
            self._parent.wait(5)
        except subprocess.TimeoutExpired:
            self._parent.kill()
            self._parent.wait()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- the warm parent's side ----------------------------------------------------------------------------------------


def serve(fd: int, modules: Sequence[str]) -> None:
    """The warm parent: import, then fork on request until the supervisor is gone."""
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
    gc.freeze()  # a runner's collections would look through, and so copy, all of the modules' memory
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
    """The driver was started in this process, though perhaps not by torch."""
    names = (
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    )
    return any(name.startswith("/dev/nvidia") for name in names)


def _reply(connection: socket.socket, answer: dict[str, Any], fds: Sequence[int] = ()) -> None:
    socket.send_fds(connection, [json.dumps(answer).encode()], list(fds))


def _fork_runner(request: dict[str, Any], fds: list[int]) -> tuple[int, int]:
    """Fork as asked; returns in the parent only."""
    here = dict(zip(request["sent"], fds, strict=True))
    spec = request["spec"]
    for name in ("lifeline", "report", "cgroup_kill"):
        spec[name] = here.get(spec[name], -1)
    for name in ("cgroup_procs", "descriptors"):
        spec[name] = [here[sent] for sent in spec[name]]
    is_sandboxed, pid, pidfd = _C.sandbox.spawn(spec)
    if is_sandboxed:
        continue_sandboxed(spec, _named(request["target"]))
    return pid, pidfd


def _named(target: str) -> Callable[[list[int]], int | None]:
    """The function, found in the runner: an import there is the runner's own."""

    def run(fds: list[int]) -> int | None:
        module, _, name = target.partition(":")
        function: Callable[[list[int]], int | None] = getattr(importlib.import_module(module), name)
        return function(fds)

    return run
