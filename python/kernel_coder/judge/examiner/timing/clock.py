"""The clock: sends one request and measures it.

On a GPU two time stamps on the Examiner's own stream measure a request. Everything between them is in line before the
clock starts, so neither process's Python is measured, nor how busy the machine's cores are:

1. The Examiner's stream waits at a gate (:mod:`kernel_coder.judge.gpu.stream_gate`). Behind it come the first time
   stamp, the copy of the inputs to shared memory, a flush of the cache, and a number that lets the Runner's stream go.
2. The Runner's stream waits for that number. Behind it come the calls, and the same number at another place.
3. The Examiner's stream waits for that one. Behind it come a look at random bytes of the outputs, so that work which a
   Runner puts off is either waited for or missing, and the second time stamp.

Then the gate opens. Without a GPU the host's clock runs from the request to the look at the outputs.
"""

from __future__ import annotations

import secrets
import time
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.link import Link, ReferenceFailed
from kernel_coder.judge.examiner.randomness import fill_random
from kernel_coder.judge.examiner.timing.requests import Request
from kernel_coder.judge.examiner.timing_constants import AWAKE_S, CANARIES, FLUSH_BYTES, QUEUE_S
from kernel_coder.judge.gpu.contention import load_probe_of
from kernel_coder.judge.gpu.stream_gate import GateError, gate_of, wait_for, write_later
from kernel_coder.judge.wire.channel import Frame
from kernel_coder.judge.wire.messages import Mode, Say, Status


class Answer(NamedTuple):
    """What came of a request."""

    taken_s: float
    launching_s: float
    """Seconds until all launches were in line, where the clock did not wait for that; 0.0 where it did."""

    request: Request | None = None
    """None for an empty request, and once it is checked."""

    found: Tensor | None = None
    """Bytes: outputs of all calls."""

    seen: Tensor | None = None
    """Some of these bytes, as they were when the clock stopped."""

    hashes: Tensor | None = None
    """Of the inputs after the request."""


class RequestClock:
    """Measures requests to a candidate's Runner and to the reference's. The caller has a turn on the device."""

    def __init__(self, checker: Checker) -> None:
        self.checker, self.task = checker, checker.task
        self.device, self.variant = self.task.device, self.task.variants[0]
        self.flushed: Tensor | None = None
        """On a GPU: written to flush the cache."""

        self._looked_at = torch.empty(CANARIES, dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            if gate_of(self.device) is None:
                raise GateError("the clock needs stream memory operations, which this CUDA driver does not have")
            with checker.turns.shared():
                self.flushed = torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
                self._side = torch.cuda.Stream(self.device)
                self._stamps = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                for one in self._stamps:  # the first record creates the event, which may wait for the GPU
                    one.record()

    def draw_places(self, calls: int) -> None:
        """Draw the places of the canaries. If the candidate knew them, it could compute those bytes first."""
        size = calls * self.variant.output_stride
        drawn = torch.frombuffer(bytearray(secrets.token_bytes(8 * CANARIES)), dtype=torch.int64)
        self.places = drawn.remainder(size).to(self.device)

    def measure(self, link: Link, calls: int, request: Request | None, mode: Mode = Mode.PLAIN) -> Answer:
        """Send a request and measure it.

        Args:
            link: to the Runner.
            calls: of the request.
            request: inputs, and what is expected; None: the calls compute nothing.
            mode: of the calls.

        Raises:
            Judged: the candidate failed.
            ReferenceFailed: the reference did.
        """
        region = self.task.memory.region(self.variant, calls)
        staged = torch.empty_like(region) if request is None else request.staged
        outputs = link.outputs.bytes[: calls * self.variant.output_stride]
        fill_random(outputs, self.task.draws.poison)
        measured = self._on_host if self.flushed is None else self._on_gpu
        taken_s, launching_s, frame = measured(link, calls, region, staged, Mode.EMPTY if request is None else mode)
        if request is None or not request.is_candidate:
            if frame.status != Status.OK:
                raise ReferenceFailed(f"the reference failed in its own Runner: {link.text()}")
            return Answer(taken_s, launching_s)
        self.checker.refuse_status(frame)
        found = outputs.clone() if request.is_kept or self.flushed is None else outputs
        hashes = self.task.fingerprint.of([region])
        return Answer(taken_s, launching_s, request, found, self._looked_at.clone(), hashes)

    def _on_host(
        self, link: Link, calls: int, region: Tensor, staged: Tensor, mode: Mode
    ) -> tuple[float, float, Frame]:
        """Seconds of a request, 0.0, and its answer."""
        region.copy_(staged)
        started = time.perf_counter()
        link.ask(Say.CALL, 0, calls, 0, int(mode), 1)
        frame = link.answer(Say.CALL, AWAKE_S, link.max_request_s)
        self._looked_at = link.outputs.bytes[self.places]
        return time.perf_counter() - started, 0.0, frame

    def _on_gpu(self, link: Link, calls: int, region: Tensor, staged: Tensor, mode: Mode) -> tuple[float, float, Frame]:
        """Seconds of a request on the GPU, of launching as far as the clock did not wait for it, and the answer."""
        assert self.flushed is not None
        gate = gate_of(self.device)
        assert gate is not None
        number, memory = 1 + secrets.randbelow(0xFFFF_FFFF), link.outputs.bytes
        go_at, done_at = memory.data_ptr() + self.task.memory.gate_at, memory.data_ptr() + self.task.memory.done_at
        # What is launched behind the shut gate has been launched before: a first launch may wait for the GPU.
        torch.index_select(memory, 0, self.places, out=self._looked_at)
        is_in_line, asked_at = False, time.perf_counter()
        try:
            gate.shut()
            try:
                self._stamps[0].record()
                region.copy_(staged)
                self.flushed.zero_()
                write_later(go_at, number, self.device)
                wait_for(done_at, number, self.device)
                torch.index_select(memory, 0, self.places, out=self._looked_at)
                self._stamps[1].record()
                asked_at = time.perf_counter()
                link.ask(Say.CALL, 0, calls, 0, int(mode), 1, number)
                is_in_line = link.await_queued(calls * QUEUE_S)
                gate.await_reached()
            finally:
                gate.open()
            frame = link.answer(Say.CALL, AWAKE_S, link.max_request_s)
        finally:
            with torch.cuda.stream(self._side):  # a Runner that failed has not written it, and this stream waits for it
                write_later(done_at, number, self.device)
        queued_at = time.perf_counter() if link.queued_at is None else link.queued_at
        self._stamps[1].synchronize()
        taken_s = self._stamps[0].elapsed_time(self._stamps[1]) / 1e3
        return taken_s, 0.0 if is_in_line else queued_at - asked_at, frame

    def load(self) -> float:
        """How many times as long as alone a piece of work takes now on the GPU; 1 on a CPU."""
        return 1.0 if self.flushed is None else load_probe_of(self.device).now(self._flush)

    def _flush(self) -> None:
        assert self.flushed is not None
        self.flushed.zero_()
