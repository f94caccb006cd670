"""The clock: sends one request and measures it.

On a GPU two time stamps in the Examiner's stream measure a request. Everything between them is enqueued before the
clock starts, so the time does not depend on either process's Python or on how busy the machine's cores are:

1. The Runner's stream waits for a number. Then it runs the calls, and writes the same number at another place.
2. The Examiner's stream waits at a gate (:mod:`kernel_coder.judge.gpu.stream_gate`). Then it takes the first time
   stamp, copies the inputs to shared memory, flushes the cache, and writes the Runner's number.
3. The Examiner's stream waits for the second number. Then it reads random bytes of the outputs, and takes the second
   time stamp. If the Runner postponed some work, these bytes are not there yet.

When all this is enqueued, the gate opens. Making the launches takes a Runner longer than the GPU takes to run them. So
while one Runner is measured, the other one makes the launches of its next request.

Without a GPU, the host's clock runs from the request until these bytes are read.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.link import Link, ReferenceFailed
from kernel_coder.judge.examiner.randomness import fill_random
from kernel_coder.judge.examiner.timing.requests import Request, inputs_in
from kernel_coder.judge.examiner.timing_constants import AWAKE_S, CANARIES, FLUSH_BYTES, GRADIENT_QUEUE_S, QUEUE_S
from kernel_coder.judge.gpu.contention import load_probe_of
from kernel_coder.judge.gpu.stream_gate import GateError, gate_of, wait_for, write_later
from kernel_coder.judge.wire.channel import Frame
from kernel_coder.judge.wire.messages import Mode, Say, Status
from kernel_coder.judge.wire.shared_tensors import free_memory


class Answer(NamedTuple):
    """The answer to a request."""

    taken_s: float
    launching_s: float
    """Seconds until all launches were in line, if the clock included that time; otherwise 0.0."""

    request: Request | None = None
    """The request; None for an empty request, and once the answer is checked."""

    found: Tensor | None = None
    """The outputs of all calls, as bytes."""

    seen: Tensor | None = None
    """Some of these bytes, as they were when the clock stopped."""

    hashes: Tensor | None = None
    """Hashes of the inputs after the request."""


class Asked(NamedTuple):
    """A request and the link to its Runner."""

    link: Link
    calls: int
    request: Request | None
    """Inputs and expected outputs; None: an empty request."""

    mode: Mode = Mode.PLAIN


class Sent(NamedTuple):
    """A request that was sent."""

    asked: Asked
    number: int
    """On a GPU: the number that the Runner's stream waits for; without one, 0."""

    asked_at: float
    """``time.perf_counter()`` when it was sent."""


class RequestClock:
    """Measures requests to the candidate's Runner and to the reference's. The caller must have a turn on the device."""

    def __init__(self, checker: Checker) -> None:
        self.checker, self.task = checker, checker.task
        self.device, self.variant = self.task.device, self.task.variants[0]
        self.queue_s = GRADIENT_QUEUE_S if self.variant.cotangent_specs else QUEUE_S
        self.flushed: Tensor | None = None
        """On a GPU: memory that is written to flush the cache."""

        self._looked_at = torch.empty(CANARIES, dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            if gate_of(self.device) is None:
                raise GateError("the clock needs stream memory operations, which this CUDA driver does not have")
            with checker.turns.shared():
                free_memory(self.device)  # otherwise this memory could be cut from a large block, which is then lost
                self.flushed = torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
                # Streams of another priority have hardware queues of their own.
                self._side = torch.cuda.Stream(self.device, priority=-1)
                self._stamps = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                for one in self._stamps:  # the first record() creates the CUDA event, which may wait for the GPU
                    one.record()

    def draw_places(self, calls: int) -> None:
        """Draw the places of the canaries. A candidate that knew them could compute those bytes first."""
        size = calls * self.variant.output_stride
        drawn = torch.frombuffer(bytearray(secrets.token_bytes(8 * CANARIES)), dtype=torch.int64)
        self.places = drawn.remainder(size).to(self.device)

    def measure(self, link: Link, calls: int, request: Request | None, mode: Mode = Mode.PLAIN) -> Answer:
        """Send a request and measure it.

        Args:
            link: the link to the Runner.
            calls: number of calls of the request.
            request: inputs and expected outputs; None: an empty request.
            mode: mode of the calls.

        Raises:
            Judged: the candidate failed.
            ReferenceFailed: the reference failed.
        """
        return self.measure_all([Asked(link, calls, request, mode)])[0]

    def measure_all(self, asked: Sequence[Asked]) -> list[Answer]:
        """Send requests and measure them one after another. Raise what :meth:`measure` raises.

        On a GPU, each Runner gets its next request before it is measured. So the launches of one Runner get in line
        while the other Runner is measured, and the device is reserved for a shorter time.
        """
        answers: list[Answer] = []
        sent: dict[int, Sent] = {}
        links = dict.fromkeys(one.link for one in asked)
        try:
            for place, one in enumerate(asked):
                if place not in sent:
                    sent[place] = self._send(one)
                for link in links:
                    following = next((at for at in range(place, len(asked)) if asked[at].link is link), place)
                    if following not in sent and link.was_in_line and self.flushed is not None:
                        sent[following] = self._send(asked[following])
                answers.append(self._receive(sent.pop(place)))
        finally:
            for left in sent.values():
                self._let_go(left)
        return answers

    def _send(self, asked: Asked) -> Sent:
        """Send a request. On a GPU, the Runner puts its launches in line behind the number of the request."""
        outputs = asked.link.outputs.bytes[: asked.calls * self.variant.output_stride]
        fill_random(outputs, self.task.draws.poison)
        sent = Sent(asked, 0 if self.flushed is None else 1 + secrets.randbelow(0xFFFF_FFFF), time.perf_counter())
        if self.flushed is not None:
            self._ask(sent)
        return sent

    def _ask(self, sent: Sent) -> None:
        mode = Mode.EMPTY if sent.asked.request is None else sent.asked.mode
        sent.asked.link.ask(Say.CALL, 0, sent.asked.calls, 0, int(mode), 1, sent.number)

    def _receive(self, sent: Sent) -> Answer:
        """Measure a request that was sent, and check its status."""
        link, calls, request, _ = sent.asked
        region = self.task.memory.region(self.variant, calls)
        staged = torch.empty_like(region) if request is None else request.staged
        measured = self._on_host if self.flushed is None else self._on_gpu
        taken_s, launching_s, frame = measured(sent, region, staged)
        if request is None or not request.is_candidate:
            if frame.status != Status.OK:
                raise ReferenceFailed(f"the reference failed in its own Runner: {link.text()}")
            return Answer(taken_s, launching_s)
        self.checker.refuse_status(frame)
        outputs = link.outputs.bytes[: calls * self.variant.output_stride]
        found = outputs.clone() if request.is_kept or self.flushed is None else outputs
        hashes = self.task.fingerprint.of([inputs_in(region, self.variant, calls)])
        return Answer(taken_s, launching_s, request, found, self._looked_at.clone(), hashes)

    def _let_go(self, sent: Sent) -> None:
        """Have the reference's Runner end a request that will not be measured. The candidate's Runner is ended."""
        link = sent.asked.link
        if self.flushed is not None and link is not self.checker.link:
            write_later(link.outputs.bytes.data_ptr() + self.task.memory.gate_at, sent.number, self.device)
            with contextlib.suppress(ReferenceFailed):
                link.answer(Say.CALL, AWAKE_S, link.max_request_s)

    def _on_host(self, sent: Sent, region: Tensor, staged: Tensor) -> tuple[float, float, Frame]:
        """Return the seconds of a request on the host's clock, 0.0, and the Runner's answer."""
        link = sent.asked.link
        region.copy_(staged)
        started = time.perf_counter()
        self._ask(sent)
        frame = link.answer(Say.CALL, AWAKE_S, link.max_request_s)
        self._looked_at = link.outputs.bytes[self.places]
        return time.perf_counter() - started, 0.0, frame

    def _on_gpu(self, sent: Sent, region: Tensor, staged: Tensor) -> tuple[float, float, Frame]:
        """Return the seconds of a request on the GPU's clock, of launching if the clock included it, and the answer."""
        assert self.flushed is not None
        gate = gate_of(self.device)
        assert gate is not None
        link, number = sent.asked.link, sent.number
        memory = link.outputs.bytes
        go_at, done_at = memory.data_ptr() + self.task.memory.gate_at, memory.data_ptr() + self.task.memory.done_at
        # Launch this kernel once before the gate is shut: the first launch of a kernel may wait for the GPU.
        torch.index_select(memory, 0, self.places, out=self._looked_at)
        is_in_line = False
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
                is_in_line = link.await_queued(sent.asked.calls * self.queue_s)
                gate.await_reached()
            finally:
                gate.open()
            frame = link.answer(Say.CALL, AWAKE_S, link.max_request_s)
        finally:
            with torch.cuda.stream(self._side):  # if the Runner failed, the main stream still waits for this number
                write_later(done_at, number, self.device)
        queued_at = time.perf_counter() if link.queued_at is None else link.queued_at
        self._stamps[1].synchronize()
        taken_s = self._stamps[0].elapsed_time(self._stamps[1]) / 1e3
        link.was_in_line = is_in_line
        return taken_s, 0.0 if is_in_line else queued_at - sent.asked_at, frame

    def load(self) -> float:
        """Return how many times as long as on a free GPU a piece of work takes now; 1 on a CPU."""
        return 1.0 if self.flushed is None else load_probe_of(self.device).now(self._flush)

    def _flush(self) -> None:
        assert self.flushed is not None
        self.flushed.zero_()
