"""The Examiner's link to a Runner."""

from __future__ import annotations

import math
import struct
import time
from typing import Any

from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, Frame, ProtocolBreach
from kernel_coder.judge.wire.messages import REPORT_BYTES, Say, Status
from kernel_coder.judge.wire.shared_tensors import Arena

HELD_S = 2.0
"""Upper limit of the time, in seconds, for which a call keeps other processes from timing. A longer call continues
while others time, as a first call does."""

MIN_LIMIT_S = 10.0
"""Lower limit of :attr:`Link.max_request_s`, in seconds."""


class Link:
    """Sends requests to a Runner and receives its answers. A Runner that breaks the protocol ends the examination."""

    def __init__(self, channel: Channel, pidfd: int, outputs: Arena, report: Any, time_limit_s: float) -> None:
        """
        Args:
            channel: the channel to the Runner.
            pidfd: descriptor of the Runner's process; -1 if its end need not be noticed at once.
            outputs: memory that the Runner writes outputs to.
            report: memory that the Runner writes error messages to.
            time_limit_s: the Runner's time limit in seconds. Only the time that the Examiner waits for it counts.
        """
        self.channel, self.pidfd, self.outputs, self.time_limit_s = channel, pidfd, outputs, time_limit_s
        self.queued_at: float | None = None
        """``time.perf_counter()`` at the Runner's message that all launches of the last request are in line behind the
        gate."""

        self.was_in_line = False
        """Whether all launches of the last timed request were in line before the gate opened."""

        self.used_s = 0.0
        """Seconds that the Examiner has waited for this Runner. They count towards its time limit. The Examiner's own
        work and its waits for the GPU do not: a slow reference would use up the time of a fast candidate."""

        self._report = report
        self._is_queueing = False
        self._answered: Frame | None = None

    @property
    def left_s(self) -> float:
        """Seconds left of the Runner's time limit."""
        return self.time_limit_s - self.used_s

    @property
    def max_request_s(self) -> float:
        """Upper limit for one timed request, in seconds. A candidate that needs longer could not finish all its timed
        requests within its time limit."""
        return max(MIN_LIMIT_S, self.time_limit_s / 10)

    def failed(self, outcome: Outcome, reason: str) -> Exception:
        """Return the exception for a Runner that is late, has ended or breaks the protocol: the candidate's fault."""
        return Judged(outcome, reason)

    def ask(self, say: Say, *values: int) -> None:
        """Send a request."""
        self._is_queueing, self._answered, self.queued_at = False, None, None
        try:
            self.channel.send(int(say), values=values, timeout_s=1.0)
        except (ChannelClosed, ChannelTimeout, OSError):
            raise self.failed(Outcome.CRASHED, "its process ended") from None

    def prepare(self, calls: int) -> None:
        """Have the Runner get memory for this many calls; for none, give back the memory that it keeps for the next
        call."""
        self.ask(Say.PING, 0, calls, 0)
        self.answer(Say.PING)

    def answer(self, say: Say, awake_s: float = 0.0, most_s: float = math.inf) -> Frame:
        """Return the Runner's answer to the last request.

        Args:
            say: kind of the request. The answer must have the same kind.
            awake_s: seconds of polling before the Examiner sleeps.
            most_s: upper limit of the wait in seconds, in addition to the Runner's own time limit.
        """
        frame, self._answered = self._answered, None
        try:
            if frame is None:
                frame = self._receive(most_s, awake_s)
            if frame.kind == Say.QUEUED and self._is_queueing:
                self._is_queueing, self.queued_at = False, time.perf_counter()
                frame = self._receive(most_s, awake_s)
        except ChannelTimeout:
            raise self.failed(Outcome.TIMEOUT, f"a request took over {most_s:g} s") from None
        if frame.kind != say or not 0 <= frame.status <= max(Status):
            raise self.failed(Outcome.REJECTED, "it wrote to the judge's channel")
        return frame

    def await_queued(self, most_s: float) -> bool:
        """Wait at most `most_s` seconds until all launches of the last request are in line behind the gate. Return
        whether they are. If the answer comes instead, keep it for :meth:`answer`."""
        try:
            frame = self._receive(most_s, most_s)
        except ChannelTimeout:
            self._is_queueing = True
            return False
        if frame.kind != Say.QUEUED:
            self._answered = frame
            return False
        self.queued_at = time.perf_counter()
        return True

    def _receive(self, most_s: float, awake_s: float) -> Frame:
        """Return the next message. Raise ChannelTimeout if it does not come within `most_s` seconds."""
        began, left_s = time.monotonic(), max(self.left_s, 0.0)
        try:
            return self.channel.receive_at_once(timeout_s=min(left_s, most_s), pidfd=self.pidfd, awake_s=awake_s)
        except ChannelTimeout:
            if left_s <= most_s:
                raise self.failed(Outcome.TIMEOUT, "no result came within the time limit") from None
            raise
        except ChannelClosed:
            raise self.failed(Outcome.CRASHED, "its process ended") from None
        except ProtocolBreach:
            raise self.failed(Outcome.REJECTED, "it wrote to the judge's channel") from None
        finally:
            self.used_s += time.monotonic() - began

    def wait(self, most_s: float) -> bool:
        """Wait at most `most_s` seconds until an answer can be received or the Runner has ended; False if neither."""
        began = time.monotonic()
        try:
            return self.channel.wait(timeout_s=min(max(self.left_s, 0.0), most_s), pidfd=self.pidfd)
        finally:
            self.used_s += time.monotonic() - began

    def text(self) -> str:
        """Return the Runner's error message."""
        (length,) = struct.unpack("<I", self._report[:4])
        return bytes(self._report[4 : 4 + min(length, REPORT_BYTES - 4)]).decode(errors="replace")

    def forget_text(self) -> None:
        """Clear the error message, so that an old message is not taken for a new one."""
        self._report[:4] = b"\0\0\0\0"


class ReferenceFailed(RuntimeError):
    """The reference's own Runner raised an error, or its process ended."""


class ReferenceLink(Link):
    """The link to the reference's own Runner. A failure raises ReferenceFailed. It is not the candidate's fault, unless
    the candidate wrote to the inputs, which both Runners share."""

    @property
    def max_request_s(self) -> float:
        """No limit besides the Runner's time limit: the first call is such a request too, and may compile."""
        return math.inf

    def failed(self, outcome: Outcome, reason: str) -> Exception:
        """Return the exception for a failure of this Runner."""
        return ReferenceFailed(f"the reference in its own Runner: {outcome}: {reason}")
