"""The clock: sends one request and measures it.

The clock starts before the request is sent. It stops when random bytes of the outputs have been read back, so that work
which a Runner puts off is either waited for or missing.

On a GPU, inputs are copied and the cache is flushed when the clock runs already, since a thread of the candidate may
watch for inputs. And the clock starts when the Runner has put all launches of the request in line behind a gate
(:mod:`kernel_coder.judge.gpu.stream_gate`), so that it measures the time of the GPU.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.link import Link, ReferenceFailed
from kernel_coder.judge.examiner.randomness import fill_random
from kernel_coder.judge.examiner.task_memory import outputs_at
from kernel_coder.judge.examiner.timing.requests import Request
from kernel_coder.judge.examiner.timing_constants import (
    AWAKE_S,
    CANARIES,
    COPIES,
    FLUSH_BYTES,
    HOST_S,
    MEASURED_BYTES,
    QUEUE_S,
    SHOWN_BYTES,
)
from kernel_coder.judge.gpu.contention import load_probe_of
from kernel_coder.judge.gpu.stream_gate import Gate, gate_of, write_later
from kernel_coder.judge.gpu.turns import synchronise
from kernel_coder.judge.wire.messages import Mode, Say, Status
from kernel_coder.judge.wire.shared_tensors import Arena


class Answer(NamedTuple):
    """What came of a request."""

    link: Link
    request: Request | None
    """None once it is checked."""

    taken_s: float
    launching_s: float
    """Seconds until all launches were in line, where the clock did not wait for that; 0.0 where it did."""

    found: Tensor
    """Bytes: outputs of all calls."""

    seen: Tensor
    """Some of these bytes, as they were when the clock stopped."""

    hashes: Tensor | None
    """Of the inputs after the request; None for the reference."""

    def forgotten(self) -> Answer:
        """Without what takes memory."""
        return self._replace(request=None, found=self.seen, hashes=None)


class Start(NamedTuple):
    """How the clock started."""

    at: float
    """``time.perf_counter()``."""

    asked_at: float | None = None
    """``time.perf_counter()`` of the request, if its launches were not in line when the clock started."""

    has_gate: bool = False

    def launching_s(self, calls: int, queued_at: float | None) -> float:
        """Seconds until all launches were in line, if the clock did not wait for that; 0.0 if it did.

        Args:
            calls: of the request.
            queued_at: ``time.perf_counter()`` of when the Runner said that they are in line. None: it did not, and the
                launches are taken to have lasted until now.
        """
        if not self.has_gate:
            return calls * HOST_S
        if self.asked_at is None:
            return 0.0
        return (time.perf_counter() if queued_at is None else queued_at) - self.asked_at


class RequestClock:
    """Measures requests to a candidate's Runner and to the reference's. The caller has a turn on the device."""

    def __init__(self, checker: Checker) -> None:
        self.checker, self.task = checker, checker.task
        self.device, self.variant = self.task.device, self.task.variants[0]
        self.flushed: Tensor | None = None
        """On a GPU: written to flush the cache."""

        if self.device.type == "cuda":  # zeros loads the kernel that flushes, which may wait for the GPU
            with checker.turns.shared():
                self.flushed = torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def draw_places(self, calls: int) -> None:
        """Draw the places of the canaries. If the candidate knew them, it could compute those bytes first."""
        size = calls * self.variant.output_stride
        drawn = torch.frombuffer(bytearray(secrets.token_bytes(8 * CANARIES)), dtype=torch.int64)
        self.places = drawn.remainder(size).to(self.device)

    def measure(self, request: Request, mode: Mode = Mode.PLAIN) -> Answer:
        """Send a request and measure it.

        Raises:
            Judged: the candidate failed.
            ReferenceFailed: the reference did.
        """
        task, link = self.task, request.link
        region = task.memory.region(self.variant, request.calls)
        outputs = link.outputs.bytes[: request.calls * self.variant.output_stride]
        fill_random(outputs, task.draws.poison)
        asked = (Say.CALL, 0, request.calls, 0, int(mode))
        start = self._start(link, request.calls, region, request.staged, *asked)
        frame = link.answer(Say.CALL, AWAKE_S, link.max_request_s)
        seen = self._canaries(outputs)
        taken_s = time.perf_counter() - start.at
        launching_s = start.launching_s(request.calls, link.queued_at)
        if request.hashes is None:
            if frame.status != Status.OK:
                raise ReferenceFailed(f"the reference failed in its own Runner: {link.text()}")
            return Answer(link, request, taken_s, launching_s, outputs, seen, None)
        self.checker.refuse_status(frame)
        found = outputs.clone() if request.is_kept or self.flushed is None else outputs
        return Answer(link, request, taken_s, launching_s, found, seen, task.fingerprint.of([region]))

    def ping(self, link: Link) -> float:
        """Seconds of a request that does next to nothing."""
        region = self.task.memory.region(self.variant, 1)[:SHOWN_BYTES]
        start = self._start(link, 1, region, torch.empty_like(region), Say.PING, 0, 0, 0, 1)
        link.answer(Say.PING, AWAKE_S, link.max_request_s)
        self._canaries(link.outputs.bytes)
        return time.perf_counter() - start.at

    def _canaries(self, outputs: Tensor) -> Tensor:
        return outputs[self.places].cpu()

    # ---- starting the clock

    def _start(self, link: Link, calls: int, region: Tensor, staged: Tensor | None, say: Say, *values: int) -> Start:
        """Copy the inputs to shared memory, send the request, and start the clock.

        Where inputs are kept back the clock starts before Runners can see them, and, with a gate, once all launches are
        in line or should be. Otherwise it starts when the inputs are there.
        """
        keeps_inputs_back = self.task.known.keeps_inputs_back
        gate = gate_of(self.device) if keeps_inputs_back else None
        if gate is not None:
            return self._start_behind(gate, link, calls, region, staged, say, *values)
        synchronise(self.device)
        started = time.perf_counter()
        if staged is not None:
            region.copy_(staged)
        self._flush()
        synchronise(self.device)
        if not keeps_inputs_back:
            started = time.perf_counter()
        link.ask(say, *values, 1)
        return Start(started)

    def _start_behind(
        self, gate: Gate, link: Link, calls: int, region: Tensor, staged: Tensor | None, say: Say, *values: int
    ) -> Start:
        number = 1 + secrets.randbelow(0xFFFF_FFFF)
        gate.shut()
        try:
            if staged is not None:
                region.copy_(staged)
            self._flush()
            write_later(link.outputs.bytes.data_ptr() + self.task.memory.gate_at, number, self.device)
            asked_at = time.perf_counter()
            link.ask(say, *values, 1, number)
            is_in_line = link.await_queued(calls * QUEUE_S)
            gate.await_reached()
        finally:
            opened = gate.open()
        return Start(opened, None if is_in_line else asked_at, has_gate=True)

    def _flush(self) -> None:
        if self.flushed is not None:
            self.flushed.zero_()

    def load(self) -> float:
        """How many times as long as alone a piece of work takes now on the GPU; 1 on a CPU."""
        return 1.0 if self.flushed is None else load_probe_of(self.device).now(self._flush)

    # ---- copies, whose time is no part of a call

    def can_keep_inputs_back(self) -> bool:
        """Whether inputs can be copied when the clock runs already: on a GPU with memory for them twice."""
        if self.flushed is None:
            return False
        try:
            torch.empty(self.variant.slots * self.variant.input_stride, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError:
            return False
        return True

    def copying_s(self, calls: int, outputs: Arena) -> list[float]:
        """Seconds of the GPU to copy one call's outputs to shared memory, measured several times.

        They are measured with `calls` calls in a row, since the first copy of a row takes longer. On a CPU this depends
        on the caches, and nothing is subtracted.
        """
        if self.flushed is None:
            return [0.0]
        found = [one for slot in range(calls) for one in outputs_at(outputs, self.variant, slot)]
        made = [torch.empty_like(one) for one in found[: len(self.variant.output_specs)]]
        return [one / calls for one in self._copy_s(list(zip(made * calls, found, strict=True)))]

    def showing_s(self, calls: int) -> list[float]:
        """Seconds of the GPU to copy one byte of inputs to shared memory, measured several times; 0 where the inputs
        are small."""
        region = self.task.memory.region(self.variant, calls)[:MEASURED_BYTES]
        if self.flushed is None or not self.task.known.keeps_inputs_back or region.numel() <= SHOWN_BYTES:
            return [0.0]
        return [one / region.numel() for one in self._copy_s([(torch.empty_like(region), region)])]

    def _copy_s(self, copies: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
        """Seconds of the GPU for all these copies, from the first tensor of a pair to the second; several times."""
        taken = []
        for _ in range(COPIES):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._flush()
            for one in {id(one): one for one, _ in copies}.values():  # just written, as a candidate's outputs are
                one.zero_()
            torch.cuda._sleep(100_000 + 20_000 * len(copies))  # cycles, in which all copies get in line
            begin.record()
            for one, place in copies:
                place.copy_(one)
            end.record()
            torch.cuda.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        return taken
