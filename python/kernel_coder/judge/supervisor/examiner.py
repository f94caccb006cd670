"""The Supervisor's connection to an Examiner: its process, its requests and their answers."""

from __future__ import annotations

import logging
import select
import time
from typing import TypeVar

from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.sandbox.process import Process
from kernel_coder.judge.supervisor.errors import ExaminerLost, HarnessError, TaskRefused
from kernel_coder.judge.wire.limits import AFTERWARDS_S
from kernel_coder.judge.wire.requests import (
    Answer,
    CandidateEnded,
    Connection,
    EndCandidate,
    Failure,
    Message,
    MessageTooLong,
    Refusal,
    Request,
    Waited,
)

LOG = logging.getLogger(__name__)

A = TypeVar("A", bound=Answer)

EXIT_WAIT_S = 2.0
"""Upper limit of the wait, in seconds, for the end of an Examiner's process that has closed its connection."""


class Examiner:
    """An Examiner's process, as the Supervisor sees it.

    Attributes:
        is_interpreted: it was forked from the parent process that has loaded Triton's interpreter.
        served: number of candidates that it has examined.
    """

    def __init__(self, process: Process, connection: Connection, is_interpreted: bool) -> None:
        self.process, self.is_interpreted = process, is_interpreted
        self.served = 0
        self._connection = connection

    def ask(self, request: Request, expected: type[A], timeout_s: float, candidate: Process | None = None) -> A:
        """Send a request and wait for its answer. Time that the Examiner waits for the GPU does not count.

        Args:
            request: the request.
            expected: class of the answer.
            timeout_s: time limit in seconds.
            candidate: the process to kill when the Examiner asks the Supervisor to.

        Raises:
            TaskRefused: the Examiner refuses the task.
            ExaminerLost: no answer came in time, or the Examiner or the reference failed in a way that a candidate
                might cause.
            HarnessError: the Examiner failed in another way.
        """
        try:
            self._connection.send(request)
        except MessageTooLong as error:
            raise HarnessError(str(error)) from None
        except OSError as error:
            raise ExaminerLost(f"no request could be sent to the Examiner: {error}{self._last_words()}") from None
        until = time.monotonic() + timeout_s
        while True:
            answer = self._receive(until)
            if isinstance(answer, Waited):
                until += answer.seconds
            elif isinstance(answer, EndCandidate) and candidate is not None:
                candidate.kill_tree()
                until += AFTERWARDS_S
                self._connection.send(CandidateEnded())
            elif isinstance(answer, Refusal):
                raise TaskRefused(answer.reason)
            elif isinstance(answer, Failure):
                raise _error_of(answer)
            elif isinstance(answer, expected):
                return answer
            else:
                raise HarnessError(f"the Examiner answered {type(request).__name__} with {type(answer).__name__}")

    def _receive(self, until: float) -> Message:
        """Return the Examiner's next message. `until` is a time of `time.monotonic()`."""
        asked = time.monotonic()
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        poller.register(self.process.pidfd, select.POLLIN)
        ready = dict(poller.poll(max(until - asked, 0.0) * 1000))
        if not ready:
            raise ExaminerLost(f"the Examiner gave no answer for {time.monotonic() - asked:.3g} s")
        message = self._connection.receive() if self._connection.fileno() in ready else None
        if message is None:
            raise ExaminerLost(f"the Examiner ended{self._last_words()}")
        return message

    def _last_words(self) -> str:
        """Return how the process ended and the last line that it printed, for an error message."""
        try:
            process_exit = self.process.wait(EXIT_WAIT_S)
        except (TimeoutError, SandboxError) as error:
            return f" ({error})"
        words = self.process.stderr.text.strip().splitlines()
        return f" ({process_exit.reason})" + (f": {words[-1]}" if words else "")

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self.process.running

    def kill(self) -> None:
        """Kill the process. A thread that waits for an answer gets an error."""
        self.process.kill()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self.process.close()


def _error_of(failure: Failure) -> HarnessError:
    text = failure.traceback.strip()
    LOG.error("the Examiner failed:\n%s", text)
    last_line = text.splitlines()[-1]
    is_lost = failure.is_of_reference or "OutOfMemoryError" in last_line
    return (ExaminerLost if is_lost else HarnessError)(f"the Examiner failed: {last_line}")
