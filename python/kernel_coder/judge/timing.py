"""How much faster a candidate is: its calls and the reference's in turn, through the same protocol, every one checked.

A request is K calls on K inputs that nobody has seen before. The clock is the Examiner's: it starts before the request
is sent, and stops when random elements of the outputs have been read back, so that work which was put off is either
waited for or missing. What a request costs by itself is measured on the reference's Runner, never on the candidate's,
and taken off both.
"""

from __future__ import annotations

import secrets
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.inputs import fill_random, map_tensors, seed_all, tensors_of
from kernel_coder.judge.interval import Interval, median_interval, speedup_interval
from kernel_coder.judge.memory import free_memory
from kernel_coder.judge.protocol import Mode, Say, Status
from kernel_coder.judge.tolerance import Tolerance
from kernel_coder.judge.verdict import Outcome
from kernel_coder.ops.compare import read_comparisons

if TYPE_CHECKING:
    from kernel_coder.judge.session import Link, Session

ROUNDS, LEAST_ROUNDS = 32, 10
"""Pairs of requests; fewer where they take too long, or where fewer tell the speedup as precisely as is asked for, and
no fewer than the second number."""

TARGET_S = 6e-3
"""Calls of a small kernel are asked for together, so many that a request takes about this long."""

MOST_CALLS = {"cpu": 64, "cuda": 16}
"""Of a request, however short they are: making inputs and comparing outputs takes longer than the calls, and a GPU is
waited for. On a CPU a request waits for a core, and few short calls would drown in that."""

CANARIES = 4096
"""Bytes of a request's outputs that are read before the clock stops."""

LEAST = 0.1
"""Of a request's time, whatever it is said to cost by itself."""

FLUSH_BYTES = 256 << 20
"""More than any L2 cache."""


COMPILE_S = 120.0
"""What torch.compile may take of the reference."""


class ReferenceFailed(RuntimeError):
    """The reference's own Runner raised an error."""


def least_time_s(written: int, l2_bytes: int, bandwidth: float) -> float:
    """Seconds that writing so many bytes takes at least, if the cache keeps what it can.

    >>> least_time_s(150 * 10**6, 50 * 10**6, 1e12), least_time_s(10, 50, 1e12)
    (9e-05, 0.0)
    """
    return 0.9 * max(written - l2_bytes, 0) / bandwidth


def _speedup(pairs: list[tuple[float, float]]) -> Interval:
    return speedup_interval([reference for reference, _ in pairs], [candidate for _, candidate in pairs])


class Call(NamedTuple):
    """Inputs of one timed call, and what the reference makes of them here, in the task's own precision."""

    inputs: list[Tensor]
    cotangents: list[Tensor]
    expected: list[Tensor]


class Timer:
    """Times one candidate against the reference."""

    def __init__(self, session: Session, reference: Link) -> None:
        self.session, self.problem = session, session.problem
        self.candidate, self.reference = session.link, reference
        self.variant = self.problem.variants[0]
        # The oracle allows this much around itself; the reference is that far from it at most.
        self.tolerances = [
            Tolerance(2 * one.rtol, 2 * one.atol, 2 * one.relative, one.reference_error)
            for one in self.problem.own_tolerances
        ]
        self.flushed: Tensor | None = None
        if session.device.type == "cuda":
            self.flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=session.device)

    def measure(self) -> dict[str, Any]:
        """Fields of the verdict."""
        from kernel_coder.judge.session import alone

        timed_calls = self.session.config.timed_calls
        free_memory(self.session.device)
        with alone(self.session.lock):
            calls = self._calls_a_request()
            self._draw_places(calls)
            overhead = sorted(self._ping() for _ in range(9))[4] + calls * self._copying_s(calls)
            rounds = max(ROUNDS, -(-timed_calls // calls))
            pairs: list[tuple[float, float]] = []
            until = time.monotonic() + self.session.config.timing_s
            while len(pairs) < LEAST_ROUNDS or (len(pairs) < rounds and time.monotonic() < until):
                pairs.append(self._round(calls, overhead))
                if len(pairs) >= LEAST_ROUNDS and len(pairs) * calls >= timed_calls and self._is_precise(pairs):
                    break
            compiled_s = self._compiled_s(calls, overhead) if self.session.config.compile_baseline else None
        reference_s, candidate_s = (median_interval(times).median for times in zip(*pairs, strict=True))
        self._refuse_below_floor(candidate_s, reference_s)
        speedup = _speedup(pairs)
        return {
            "speedup": speedup.median,
            "speedup_low": speedup.low,
            "speedup_high": speedup.high,
            "runtime_ms": candidate_s * 1e3,
            "reference_ms": reference_s * 1e3,
            "reference_compile_ms": None if compiled_s is None else compiled_s * 1e3,
            "runtimes_ms": [candidate * 1e3 for _, candidate in pairs],
            "reference_runtimes_ms": [reference * 1e3 for reference, _ in pairs],
        }

    def _is_precise(self, pairs: list[tuple[float, float]]) -> bool:
        speedup = _speedup(pairs)
        return speedup.high - speedup.low <= self.session.config.timing_precision * speedup.median

    def _refuse_below_floor(self, call_s: float, reference_s: float) -> None:
        """What does not fit into the cache has to be written to memory, and that takes its time.

        Only outputs count: a solution may read less than the reference does, and compute less. Where even the
        reference is faster than that, what was taken off its time was too much, and so it was off the candidate's.
        """
        if self.session.device.type != "cuda":
            return
        from kernel_coder.judge.gpu import gpu_facts

        facts = gpu_facts(self.session.device)
        written = sum(spec.nbytes for spec in self.variant.output_specs)
        least_s = min(least_time_s(written, facts.l2_bytes, facts.bandwidth), 0.9 * reference_s)
        if call_s < least_s:
            raise self.session.ended(
                Outcome.REJECTED,
                f"a call takes {1e3 * call_s:.3g} ms, and writing its outputs alone takes {1e3 * least_s:.3g} ms",
            )

    def _calls_a_request(self) -> int:
        """So many that a request takes `TARGET_S`, by the faster of the two."""
        both = (self.reference, self.candidate)
        self._draw_places(1)
        for link in both:
            self._request(link, 1, 0.0)  # what is made at the first call
        fastest = min(self._request(link, 1, 0.0) for link in both for _ in range(3))
        return max(
            1, min(self.variant.slots, MOST_CALLS[self.session.device.type], round(TARGET_S / max(fastest, 1e-7)))
        )

    def _round(self, calls: int, overhead: float) -> tuple[float, float]:
        """Seconds a call of the reference and of the candidate, in an order that nobody knows."""
        taken: dict[bool, float] = {}
        first = bool(secrets.randbelow(2))
        for is_reference in (first, not first):
            link = self.reference if is_reference else self.candidate
            taken[is_reference] = self._request(link, calls, overhead)
        return taken[True], taken[False]

    def _ping(self) -> float:
        """Seconds that a request takes in which nothing is done."""
        self._flush()
        started = time.perf_counter()
        self.reference.ask(Say.PING)
        self.reference.answer(Say.PING)
        self._canaries(self.reference)
        return time.perf_counter() - started

    def _copying_s(self, calls: int) -> float:
        """Seconds of a GPU that a call's outputs take on their way into shared memory, which is none of the candidate's
        work. On the CPU the caches decide, and nothing is taken off."""
        if self.session.device.type != "cuda":
            return 0.0
        found = [one for slot in range(calls) for one in self.problem.found(self.reference.outputs, self.variant, slot)]
        made = [torch.empty_like(one) for one in found[: len(self.variant.output_specs)]]
        taken = []
        for _ in range(5):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._flush()
            for one in made:  # fresh from the kernel, as a candidate's
                one.zero_()
            torch.cuda._sleep(100_000)  # the copies wait in line behind this, so that only the device's time counts
            begin.record()
            for one, place in zip(made, found, strict=False):
                place.copy_(one)
            end.record()
            torch.cuda.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        return sorted(taken)[2]

    def _draw_places(self, calls: int) -> None:
        size = calls * self.variant.output_stride
        self.places = torch.randint(
            0, size, (CANARIES,), generator=self.problem.rng, device=self.session.device, dtype=torch.int64
        )

    def _canaries(self, link: Link) -> Tensor:
        return link.outputs.bytes[self.places].cpu()

    def _flush(self) -> None:
        if self.flushed is not None:
            self.flushed.zero_()
        self.session.synchronise()

    def _compiled_s(self, calls: int, overhead: float) -> float | None:
        """Seconds a call of the reference under torch.compile; None if that cannot be had."""
        self.reference.deadline += COMPILE_S
        try:
            self._request(self.reference, 1, 0.0, Mode.COMPILED)
            taken = [self._request(self.reference, calls, overhead, Mode.COMPILED) for _ in range(LEAST_ROUNDS)]
        except ReferenceFailed as failed:
            print(failed, file=sys.stderr)  # the Examiner's: for people
            return None
        return median_interval(taken).median

    def _request(self, link: Link, count: int, overhead: float, mode: Mode = Mode.PLAIN) -> float:
        """Seconds a call, of `count` calls on fresh inputs, each of them checked."""
        problem, variant = self.problem, self.variant
        seed_all(problem.seeds.next(), self.session.device)
        is_candidate = link is not self.reference
        calls = [self._fresh(slot, is_candidate) for slot in range(count)]
        hashes = self._hash(count) if is_candidate else None
        fill_random(link.outputs.bytes[: count * variant.output_stride], problem.rng)
        self._flush()
        started = time.perf_counter()
        link.ask(Say.CALL, 0, count, 0, int(mode))
        frame = link.answer(Say.CALL)
        seen = self._canaries(link)
        taken = time.perf_counter() - started
        if hashes is not None:
            self.session.refuse_status(frame)
            self._check(calls, hashes, seen)
        elif frame.status != Status.OK:
            raise ReferenceFailed(f"the reference failed in its own Runner: {link.text()}")
        return max(taken - overhead, taken * LEAST) / count

    def _hash(self, calls: int) -> Tensor:
        """Of the inputs of all calls, as they lie in memory."""
        begin = self.problem.slots_at
        return self.problem.fingerprint.of(
            [self.problem.inputs.bytes[begin : begin + calls * self.variant.input_stride]]
        )

    def _fresh(self, slot: int, is_checked: bool) -> Call:
        """Inputs that nobody has seen, in their place; what has to come out, if that is compared."""
        problem = self.problem
        inputs = problem.own_inputs(seeded=True)
        cotangents = problem.cotangents_of(inputs)
        problem.write(self.variant, slot, [*tensors_of(inputs), *cotangents])
        expected: list[Tensor] = []
        if is_checked:
            copies = map_tensors(inputs, Tensor.clone) if problem.changes_inputs else inputs
            expected = tensors_of(problem.outputs(problem.module, copies, cotangents))
        return Call(tensors_of(inputs), cotangents, expected)

    def _check(self, calls: list[Call], hashes: Tensor, seen: Tensor) -> None:
        problem, variant = self.problem, self.variant
        compared = [
            ops.compare(found, wanted, rtol=allowed.rtol, atol=allowed.atol)
            for slot, call in enumerate(calls)
            for found, wanted, allowed in zip(
                problem.found(self.candidate.outputs, variant, slot), call.expected, self.tolerances, strict=True
            )
        ]
        results = read_comparisons(compared)
        per_call = len(self.tolerances)
        for slot in range(len(calls)):
            mine = results[slot * per_call : (slot + 1) * per_call]
            self.session.refuse_values(variant, "own", self.tolerances, mine, "In a timed call: ")
        if not torch.equal(self._canaries(self.candidate), seen):
            raise self.session.ended(Outcome.REJECTED, "it wrote to an output after it had answered")
        if not problem.changes_inputs and not torch.equal(self._hash(len(calls)), hashes):
            raise self.session.ended(Outcome.WRONG_OUTPUT, "it wrote to an input in a timed call")
