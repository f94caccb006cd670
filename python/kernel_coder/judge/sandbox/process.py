"""A sandboxed process with all processes that it starts: its tree."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from dataclasses import dataclass

from kernel_coder.judge.sandbox.cgroups import Cgroup
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.sandbox.report import ENDED, ENDED_BY, SETUP_FAILED, STARTING, Output, Report

KILL_S = 60.0
"""Time limit, in seconds, for a killed tree to end. The kernel of a busy machine needs seconds to end hundreds of
processes."""


@dataclass(frozen=True)
class ProcessExit:
    """How a sandboxed tree ended. This is for people and records only: the judge reads results from shared buffers.

    Attributes:
        exit_code: exit code of the first process; None if a signal ended it.
        signal: the signal's number; None if the process exited.
        ended_by: ``itself``, ``wall_limit`` or ``supervisor``.
        out_of_memory: whether the kernel killed it for its memory. None: SIGKILL ended it, for an unknown reason.
        left_running: whether other processes of the tree were still running at its end; they were killed.
        wall_s, user_s, system_s: elapsed time and processor time in seconds.
        max_rss_bytes: resident memory of the largest process in bytes.
    """

    exit_code: int | None
    signal: int | None
    ended_by: str
    out_of_memory: bool | None
    left_running: bool
    wall_s: float
    user_s: float
    system_s: float
    max_rss_bytes: int

    @property
    def reason(self) -> str:
        """How the tree ended, in a few words.

        >>> ProcessExit(None, 11, "itself", False, False, 0.1, 0.1, 0.0, 1).reason
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


class Process:
    """A sandboxed tree. Use it as a context manager or call `close`, which kills and removes whatever is left.

    Attributes:
        work_dir: its private work directory.
        uid: the user id of the tree alone; None if it runs as the Supervisor's user.
        pid: process id of the keeper.
        pidfd: pidfd of the keeper; readable when the whole tree has ended.
    """

    def __init__(
        self,
        report: Report,
        lifeline: socket.socket,
        cleanup: contextlib.ExitStack,
        *,
        work_dir: str,
        uid: int | None,
        cgroup: Cgroup | None,
    ) -> None:
        self._report = report
        self._lifeline = lifeline
        self._cleanup = cleanup
        self._cgroup = cgroup
        self._exit: ProcessExit | None = None
        self._outputs: tuple[Output, Output] | None = None
        self._closed = False
        self.work_dir = work_dir
        self.uid = uid
        self.pid = -1
        self.pidfd = -1

    def attach(self, pid: int, pidfd: int) -> None:
        """Take over the keeper that was started. Its descriptor is closed together with this object."""
        self.pid, self.pidfd = pid, pidfd
        self._cleanup.callback(os.close, pidfd)

    def await_start(self, timeout_s: float) -> None:
        """Wait until every layer is in place. Raise SandboxError if one of them failed."""
        self._lifeline.settimeout(timeout_s)
        try:
            self._lifeline.recv(1)
        except TimeoutError:
            raise SandboxError(f"the sandbox was not set up within {timeout_s:g} s") from None
        if self._report.state in (STARTING, SETUP_FAILED):
            self._await_keeper(timeout_s)
            if self._report.state == STARTING:
                raise SandboxError("the sandbox's keeper died before it started the process")
            raise SandboxError(f"the sandbox could not be set up: {self._report.failure()}")

    def _await_keeper(self, timeout_s: float | None) -> bool:
        """Wait for the keeper's end; False if it does not end within `timeout_s`."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        if not poller.poll(None if timeout_s is None else max(timeout_s, 0.0) * 1000):
            return False
        with contextlib.suppress(ChildProcessError):  # a keeper that a fork server started is not our child
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        return True

    @property
    def running(self) -> bool:
        """Whether some process of the tree is left."""
        return self._exit is None and not self._await_keeper(0.0)

    def wait(self, timeout_s: float | None = None) -> ProcessExit:
        """Wait until the whole tree has ended, and return how it ended.

        Raises:
            TimeoutError: the tree is still running after `timeout_s`. Nothing is killed.
        """
        if self._exit is None:
            if not self._await_keeper(timeout_s):
                raise TimeoutError(f"the sandboxed process still runs after {timeout_s:g} s")
            self._exit = self._read_exit()
            self._outputs = (self._report.output(0), self._report.output(1))
        return self._exit

    def _read_exit(self) -> ProcessExit:
        report = self._report.read()
        if report.state == SETUP_FAILED:
            raise SandboxError(f"the sandbox could not be set up: {self._report.failure()}")
        if report.state != ENDED:
            raise SandboxError("the sandbox's keeper was killed")
        code = os.waitstatus_to_exitcode(report.wait_status)
        killed = code == -signal.SIGKILL and report.ended_by == 0
        out_of_memory: bool | None = False
        if self._cgroup is not None:
            out_of_memory = killed and self._cgroup.out_of_memory_kills() > 0
        elif killed:
            out_of_memory = None
        return ProcessExit(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            ended_by=ENDED_BY[report.ended_by],
            out_of_memory=out_of_memory,
            left_running=bool(report.left_running),
            wall_s=(report.ended_ns - report.started_ns) / 1e9,
            user_s=report.user_us / 1e6,
            system_s=report.system_us / 1e6,
            max_rss_bytes=report.max_rss_kib * 1024,
        )

    def kill(self) -> None:
        """Have every process of the tree killed, and return at once. Any thread may call it while another waits."""
        with contextlib.suppress(OSError):
            self._lifeline.send(b"k")

    def kill_tree(self, timeout_s: float = KILL_S) -> ProcessExit:
        """Kill every process of the tree and wait until all have ended. Raise SandboxError if some do not."""
        self.kill()
        try:
            return self.wait(timeout_s)
        except TimeoutError:
            raise SandboxError(f"a process stayed in the kernel for {timeout_s:g} s after SIGKILL") from None

    @property
    def stdout(self) -> Output:
        """What was printed to stdout so far."""
        return self._outputs[0] if self._outputs else self._report.output(0)

    @property
    def stderr(self) -> Output:
        """What was printed to stderr so far."""
        return self._outputs[1] if self._outputs else self._report.output(1)

    def close(self) -> None:
        """Kill what is left of the tree, wait for its end, and remove its work directory and control group."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._exit is None and self.pidfd >= 0:
                self.kill()
                if not self._await_keeper(KILL_S):
                    raise SandboxError(f"a process stayed in the kernel for {KILL_S:g} s after SIGKILL")
                with contextlib.suppress(SandboxError):
                    self._exit = self._read_exit()
                self._outputs = (self._report.output(0), self._report.output(1))
        finally:
            self._cleanup.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
