"""Starts and ends a judge's processes: sandboxed forks of parent processes that have loaded torch and Triton."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from kernel_coder.judge.config import BUILDS, JudgeConfig
from kernel_coder.judge.gpu import nvml
from kernel_coder.judge.gpu.turns import lock_file
from kernel_coder.judge.runner.side_streams import CONNECTIONS, OWN_CONNECTIONS
from kernel_coder.judge.runner.side_streams import VARIABLE as QUEUES
from kernel_coder.judge.runner.triton_cache import VARIABLE as BUILT
from kernel_coder.judge.runner.triton_cache import TritonCache
from kernel_coder.judge.sandbox.config import DEFAULT_REQUIRED, Limits, SandboxConfig
from kernel_coder.judge.sandbox.fork_server import ForkServer
from kernel_coder.judge.sandbox.leftovers import sweep
from kernel_coder.judge.sandbox.process import Process
from kernel_coder.judge.sandbox.sandbox import Sandbox
from kernel_coder.judge.supervisor.examiner import Examiner
from kernel_coder.judge.wire import limits as wire_limits
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, ProtocolBreach
from kernel_coder.judge.wire.messages import Say
from kernel_coder.judge.wire.requests import Connection

LOG = logging.getLogger(__name__)

MAX_PROCESSES = 256
"""Upper limit of a candidate's processes and threads if it compiles C++ or runs on the CPU. A build needs far fewer. A
candidate on a GPU that builds nothing gets half. The limit leaves other candidates a share of the cores."""

WORK_BYTES = 1 << 30
BUILD_WORK_BYTES = 4 << 30
"""Upper limits of the files in a candidate's work directory, in bytes. The second one is for backends that compile."""

MAX_CONTEXTS = 4
"""Upper limit of the Runners that create a CUDA context at the same time. The driver creates one context after another,
and every other call to the driver waits for all that were requested."""

START_AHEAD_S = 30.0
"""Time limit, in seconds, for a Runner that is started ahead to create its CUDA context, and again for the rest."""

_EXAMINER = "kernel_coder.judge.examiner.service:main"
_RUNNER = "kernel_coder.judge.runner.process:main"
_MODULES = (
    "torch",
    "kernel_coder.judge.examiner.service",
    "kernel_coder.judge.runner.process",
    "kernel_coder.judge.examiner.timing.timer",
)
_TRITON_MODULES = ("triton", "triton.language", "triton.runtime.interpreter", "triton.compiler.compiler")
_WARM_TRITON = "kernel_coder.judge.runner.warm_triton"


@dataclass(frozen=True)
class Runner:
    """A Runner's process, and the Supervisor's end of its channel."""

    process: Process
    channel: Channel

    def hand_over(self, *, plan: int, source: int, report: int, inputs: int, outputs: int) -> None:
        """Send the descriptors of a task. If that fails, nothing is raised: the Examiner gets no answer from the
        Runner, and decides what that means."""
        with contextlib.suppress(ChannelClosed):
            self.channel.send(int(Say.TASK))
            self.channel.send_descriptors([plan, source, report, inputs, outputs])

    def close(self) -> None:
        """End the process."""
        self.channel.close()
        self.process.close()


class Processes:
    """The processes of one judge.

    Args:
        device: ``cpu`` or ``cuda:N``.
        config: the judge's configuration.
        sandbox: the user and the files of sandboxed processes; None: the default ones.

    Raises:
        SandboxError: this machine lacks a required layer of the sandbox.

    Attributes:
        profile: the layers of the sandbox that are active.
        visible: the value of CUDA_VISIBLE_DEVICES in every process; empty on the CPU.
        lock_path: the GPU's lock file, through which the Examiners of all judges take turns; empty on the CPU.
    """

    def __init__(self, device: str, config: JudgeConfig, sandbox: SandboxConfig | None) -> None:
        self.device, self.config = device, config
        self.visible = self.lock_path = ""
        gpu = None if device == "cpu" else int(device.partition(":")[2])
        if gpu is not None:  # CUDA numbers GPUs in its own order; device nodes and UUIDs have the driver's
            self.visible, gpu = nvml.visible_name(gpu), nvml.node_number(gpu)
        self._built: TritonCache | None = None
        with contextlib.ExitStack() as on_error:
            base = sandbox or SandboxConfig()
            sweep(base)
            if gpu is not None and has_triton():
                self._built = TritonCache(self.environment(is_interpreted=False))
                on_error.callback(self._built.close)
                base = replace(base, readable=(*base.readable, self._built.folder))
            require = frozenset(config.require) if config.require is not None else DEFAULT_REQUIRED
            self._sandbox = Sandbox(replace(base, require=base.require | require if sandbox else require, gpu=gpu))
            # On a GPU, the seccomp filter forbids sending descriptors. The Examiner must send some, and runs no
            # candidate, so it has no filter.
            trusted = replace(self._sandbox.config, require=frozenset(), without=base.without | {"seccomp"})
            self._examiner_sandbox = self._sandbox if gpu is None else Sandbox(trusted)
            on_error.pop_all()
        self.profile = self._sandbox.profile
        self._servers: dict[bool, ForkServer] = {}
        self._servers_lock = threading.Lock()
        self._closing = ThreadPoolExecutor(config.parallel(), thread_name_prefix="judge-aside")
        self._starting = ThreadPoolExecutor(config.parallel(), thread_name_prefix="judge-start")
        self._contexts = threading.Semaphore(MAX_CONTEXTS)
        self._retired: set[Future[None]] = set()
        if gpu is not None:
            self.lock_path = lock_file(gpu)

    # ---- starting

    def start_examiner(self, is_interpreted: bool) -> Examiner:
        """Start an Examiner. It is trusted, so its memory and its time have no limit.

        It has several hardware queues. If a Runner fails while it is timed, the Examiner's main stream waits, and
        another stream must be able to end that wait (:mod:`kernel_coder.judge.examiner.timing.clock`).
        """
        ours, theirs = Connection.pair()
        with contextlib.closing(theirs), contextlib.ExitStack() as on_error:
            on_error.callback(ours.close)
            process = self._server(is_interpreted).start(
                _EXAMINER,
                fds=[theirs.fileno()],
                limits=replace(self.limits(None), memory_bytes=None, data_bytes=None),
                environment=self.environment(is_interpreted, OWN_CONNECTIONS),
                sandbox=self._examiner_sandbox,
            )
            on_error.pop_all()
        return Examiner(process, ours, is_interpreted)

    def start_runner(self, is_interpreted: bool, limits: Limits, connections: int = CONNECTIONS) -> Runner:
        """Start a Runner, which then waits for its task. `connections` is the number of its hardware queues."""
        ours, theirs = Channel.pair()
        with contextlib.closing(theirs), contextlib.ExitStack() as on_error:
            on_error.callback(ours.close)
            process = self._server(is_interpreted).start(
                _RUNNER, fds=[theirs.fd], limits=limits, environment=self.environment(is_interpreted, connections)
            )
            on_error.pop_all()
        return Runner(process, ours)

    def start_ahead(self, is_interpreted: bool) -> Future[Runner | None]:
        """Start a Runner in another thread before there is a candidate for it. None if it does not get ready."""
        return self._starting.submit(self._start_and_warm, is_interpreted)

    def _start_and_warm(self, is_interpreted: bool) -> Runner | None:
        """Start a Runner and wait until it is ready. Its answers can be trusted: it has run no candidate yet."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._contexts)
            runner = self.start_runner(is_interpreted, self.limits(None))
            try:
                runner.channel.send(int(Say.PING))
                runner.channel.send(int(Say.PING))
                runner.channel.receive(timeout_s=START_AHEAD_S, pidfd=runner.process.pidfd)  # its CUDA context exists
                stack.close()
                runner.channel.receive(timeout_s=START_AHEAD_S, pidfd=runner.process.pidfd)  # the rest is loaded too
                return runner
            except (ChannelClosed, ChannelTimeout, ProtocolBreach) as error:
                LOG.warning("a Runner that was started ahead cannot be used: %s", error)
                runner.close()
                return None

    def _server(self, is_interpreted: bool) -> ForkServer:
        """Return the fork server whose parent process has loaded Triton, with or without its interpreter."""
        with self._servers_lock:
            if is_interpreted not in self._servers:
                modules = [*_MODULES, *(_TRITON_MODULES if has_triton() else ())]
                if has_triton() and (is_interpreted or self.visible or self.config.compile_for):
                    modules.append(_WARM_TRITON)
                environment = self.environment(is_interpreted)
                self._servers[is_interpreted] = ForkServer(self._sandbox, modules, environment=environment)
            return self._servers[is_interpreted]

    def environment(self, is_interpreted: bool, connections: int = CONNECTIONS) -> dict[str, str]:
        """Return the environment variables of a process."""
        own = {"OMP_NUM_THREADS": str(self.config.threads), "TORCHINDUCTOR_COMPILE_THREADS": "1", "MAX_JOBS": "2"}
        python_folder = os.path.dirname(sys.executable)  # contains ninja
        own["PATH"] = f"{python_folder}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"
        if is_interpreted:
            own["TRITON_INTERPRET"] = "1"
        own["CUDA_VISIBLE_DEVICES"] = self.visible
        if self.visible:
            own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            own[QUEUES] = str(connections)
        if self._built is not None:
            own[BUILT] = self._built.folder
        for name in ("CUDA_HOME", "LD_LIBRARY_PATH"):  # they say where the CUDA toolkit is
            if name in os.environ:
                own[name] = os.environ[name]
        return own

    def limits(self, time_limit_s: float | None, backend: str = "torch") -> Limits:
        """Return the limits of a process. `time_limit_s` is a candidate's time limit in seconds; None: no limit."""
        memory = self.config.memory_bytes
        has_cgroup = "memory_cgroup" in self.profile.active
        if self.lock_path:  # waiting for the GPU does not count, so the Supervisor cannot set a limit in advance
            time_limit_s = None
        return Limits(
            wall_s=None if time_limit_s is None else time_limit_s + wire_limits.EXAMINER_S + wire_limits.GRACE_S,
            memory_bytes=memory if has_cgroup else None,
            data_bytes=memory if not has_cgroup and self.device == "cpu" else None,
            processes=MAX_PROCESSES if backend in BUILDS or self.device == "cpu" else MAX_PROCESSES // 2,
            work_bytes=BUILD_WORK_BYTES if backend in BUILDS else WORK_BYTES,
        )

    def open_lock(self, stack: contextlib.ExitStack) -> int | None:
        """Open the GPU's lock file until the stack is closed. Return None on the CPU.

        It is opened anew for each candidate: a lock belongs to the open file, and is released when all processes that
        have the descriptor have closed it.
        """
        if not self.lock_path:
            return None
        fd = os.open(self.lock_path, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        return fd

    # ---- ending

    def retire(self, process: Process) -> Future[None]:
        """Kill a candidate's process tree, and wait in another thread for its end: a CUDA context takes long to end."""
        process.kill()
        ending: Future[None] = self._closing.submit(process.close)
        self._retired.add(ending)
        ending.add_done_callback(self._forget_retired)
        return ending

    def _forget_retired(self, ending: Future[None]) -> None:
        self._retired.discard(ending)
        if (error := ending.exception()) is not None:
            LOG.error("a candidate's process could not be ended: %s", error)

    def await_retired(self) -> None:
        """Wait until all retired processes have ended."""
        futures.wait(tuple(self._retired))

    def close(self) -> None:
        """End the fork servers. All other processes must have been ended before."""
        self.await_retired()
        self._closing.shutdown()
        self._starting.shutdown()
        for server in self._servers.values():
            server.close()
        if self._built is not None:
            self._built.close()


def has_triton() -> bool:
    """Return whether Triton is installed."""
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:
        return False
