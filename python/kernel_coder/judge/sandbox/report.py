"""The keeper's report about a sandboxed tree, in shared memory that the tree itself cannot reach.

The keeper is the process that starts the sandboxed process, waits for it and kills what is left of its tree.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

from kernel_coder import _C
from kernel_coder.judge.sandbox.config import Limits

_core = _C.sandbox

_LAYOUT = struct.Struct(_core.REPORT_FORMAT)
STARTING, RUNNING, ENDED, SETUP_FAILED = (
    _core.STATES.index(name) for name in ("starting", "running", "ended", "setup_failed")
)
ENDED_BY = _core.ENDED_BY


class Output(NamedTuple):
    """The beginning and the end of an output stream. `written` is its whole length in bytes."""

    head: bytes
    tail: bytes
    written: int

    @property
    def text(self) -> str:
        """Beginning and end as text, with a mark between them if something was left out."""
        omitted = self.written - len(self.head) - len(self.tail)
        mark = f"\n[... {omitted} bytes left out ...]\n" if omitted else ""
        return self.head.decode(errors="replace") + mark + self.tail.decode(errors="replace")


class ReportFields(NamedTuple):
    """The numbers of a report; ``csrc/sandbox/report.h`` says what each means."""

    state: int
    ended_by: int
    wait_status: int
    left_running: int
    failed_step: int
    error: int
    detail: int
    keeper_pid: int
    started_ns: int
    ended_ns: int
    user_us: int
    system_us: int
    max_rss_kib: int
    written_stdout: int
    written_stderr: int


class Report:
    """The keeper's block of shared memory: :class:`ReportFields`, then the kept output of both streams."""

    def __init__(self, limits: Limits) -> None:
        self.head, self.tail = limits.output_head_bytes, limits.output_tail_bytes
        size = _LAYOUT.size + 2 * (self.head + self.tail)
        self.fd: int = _core.make_buffer("sandbox-report", size)
        self.map = mmap.mmap(self.fd, size)

    def read(self) -> ReportFields:
        """Return the current numbers."""
        return ReportFields(*_LAYOUT.unpack_from(self.map))

    @property
    def state(self) -> int:
        """One of STARTING, RUNNING, ENDED and SETUP_FAILED."""
        return self.read().state

    def failure(self) -> str:
        """Return which step of the setup failed, and why."""
        fields = self.read()
        step = _core.SETUP_STEPS[fields.failed_step]
        which = f" {fields.detail}" if step in ("mount", "limits") else ""
        return f"step {step}{which}: {os.strerror(fields.error)}"

    def output(self, stream: int) -> Output:
        """Return what is kept of stdout (0) or stderr (1)."""
        fields = self.read()
        written = (fields.written_stdout, fields.written_stderr)[stream]
        start = _LAYOUT.size + stream * (self.head + self.tail)
        head = self.map[start : start + min(written, self.head)]
        later = max(written - self.head, 0)
        ring = self.map[start + self.head : start + self.head + min(later, self.tail)]
        cut = later % self.tail if self.tail and later > self.tail else 0
        return Output(head, ring[cut:] + ring[:cut], written)

    def close(self) -> None:
        """Unmap the block and close its descriptor."""
        self.map.close()
        os.close(self.fd)
