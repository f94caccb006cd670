"""One candidate's examination: what is asked of its Runner, in which order, and what the answers mean."""

from __future__ import annotations

import math
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge import feedback
from kernel_coder.judge.config import BUILDS
from kernel_coder.judge.examiner import tolerance
from kernel_coder.judge.examiner.input_families import fill_random
from kernel_coder.judge.examiner.prepared_task import Problem, Refused, Sample, Variant
from kernel_coder.judge.examiner.source_checks import library_call, speaks_of_streams
from kernel_coder.judge.feedback import only_facts
from kernel_coder.judge.gpu.turns import Turn, await_closed, shared
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, Frame, ProtocolBreach
from kernel_coder.judge.wire.messages import (
    REPORT_BYTES,
    Audit,
    Loaded,
    Mode,
    Say,
    Status,
)
from kernel_coder.judge.wire.shared_tensors import Arena, free_memory
from kernel_coder.ops.compare import ComparisonResult, read_comparisons

if TYPE_CHECKING:
    from kernel_coder.judge.examiner.timing.timer import Timer


class Ended(Exception):
    """Judging is over: how, and what is said about it."""

    def __init__(self, outcome: Outcome, reason: str, told: str = "", compiled: bool = True) -> None:
        reason = reason if reason.strip() else feedback.NO_MESSAGE  # of which a verdict could not be made
        super().__init__(reason)
        self.outcome, self.reason, self.compiled = outcome, reason, compiled
        self.feedback = told if told.strip() else reason


KERNELS = 1000
"""Characters about own kernels."""

AGAIN = 2
"""Checks after the timed calls, of other inputs than the task's own: who counts calls knows when the first ones are."""

REARRANGED = 1 << 16
"""Elements of an output that are looked for among the inputs' and parameters'."""

STARTING_S = 2.0
"""For so long may the start of the next candidate's process, which makes a GPU's context, put off this one's timing."""

ABLATED_S = 10.0
"""So much longer than others may a call take whose own kernels do nothing, until it is as good as another result."""

HELD_S = 10.0
"""For so long may a call keep others from being timed. Then it goes on beside them, as first calls do."""


class Link:
    """The Examiner's end of a Runner."""

    def __init__(self, channel: Channel, pidfd: int, outputs: Arena, report: Any, life_s: float) -> None:
        self.channel, self.pidfd, self.outputs, self.life_s = channel, pidfd, outputs, life_s
        self._report = report
        self._is_queueing = False
        self._answered: Frame | None = None
        self.queued_at: float | None = None
        """``time.perf_counter()`` of when it said that all that was asked for last waits behind the gate."""

        self._began, self._waited_s = time.monotonic(), Turn.waited_s

    @property
    def left_s(self) -> float:
        """Of its life. Waiting for a GPU that others have is no part of it."""
        return self.life_s + (Turn.waited_s - self._waited_s) - (time.monotonic() - self._began)

    @property
    def request_s(self) -> float:
        """What a timed request may take. So many are timed that nobody comes to an end who takes longer."""
        return max(HELD_S, self.life_s / 10)

    def failed(self, outcome: Outcome, reason: str) -> Exception:
        """What a Runner's silence, end or nonsense means: the candidate's fault."""
        return Ended(outcome, reason)

    def ask(self, say: Say, *values: int) -> None:
        self._is_queueing, self._answered, self.queued_at = False, None, None
        try:
            self.channel.send(int(say), values=values, timeout_s=1.0)
        except (ChannelClosed, ChannelTimeout, OSError):
            raise self.failed(Outcome.CRASHED, "its process ended") from None

    def answer(self, say: Say, awake_s: float = 0.0, most_s: float = math.inf) -> Frame:
        """The Runner's answer, for the first `awake_s` without going to sleep. What is no answer is its end, and so is
        one that takes longer than its life, or than `most_s`."""
        left = max(self.left_s, 0.0)
        frame, self._answered = self._answered, None
        try:
            if frame is None:
                frame = self._receive(min(left, most_s), awake_s)
            if frame.kind == Say.QUEUED and self._is_queueing:
                self._is_queueing, self.queued_at = False, time.perf_counter()
                frame = self._receive(min(left, most_s), awake_s)
        except ChannelTimeout:
            why = "no result came within the time limit" if left <= most_s else f"a request took over {most_s:g} s"
            raise self.failed(Outcome.TIMEOUT, why) from None
        if frame.kind != say or not 0 <= frame.status <= max(Status):
            raise self.failed(Outcome.REJECTED, "it wrote to the judge's channel")
        return frame

    def await_queued(self, most_s: float) -> bool:
        """Until all that was asked for waits behind the gate, but no longer than `most_s`; whether it does. An answer
        that comes without that is for :meth:`answer`."""
        try:
            frame = self._receive(min(max(self.left_s, 0.0), most_s), most_s)
        except ChannelTimeout:
            self._is_queueing = True
            return False
        if frame.kind != Say.QUEUED:
            self._answered = frame
            return False
        self.queued_at = time.perf_counter()
        return True

    def _receive(self, most_s: float, awake_s: float) -> Frame:
        try:
            return self.channel.receive_at_once(timeout_s=most_s, pidfd=self.pidfd, awake_s=awake_s)
        except ChannelClosed:
            raise self.failed(Outcome.CRASHED, "its process ended") from None
        except ProtocolBreach:
            raise self.failed(Outcome.REJECTED, "it wrote to the judge's channel") from None

    def wait(self, most_s: float) -> bool:
        """For an answer, which then is still to be taken; whether it is there, or never will be."""
        return self.channel.wait(timeout_s=min(self.left_s, most_s), pidfd=self.pidfd)

    def text(self) -> str:
        (length,) = struct.unpack("<I", self._report[:4])
        return bytes(self._report[4 : 4 + min(length, REPORT_BYTES - 4)]).decode(errors="replace")

    def forget_text(self) -> None:
        self._report[:4] = b"\0\0\0\0"


class ReferenceFailed(RuntimeError):
    """The reference's own Runner raised an error, or came to an end."""


class ReferenceLink(Link):
    """The end of the reference's own Runner, whose faults are not the candidate's, unless it has a hand in them: both
    see the same inputs."""

    @property
    def request_s(self) -> float:
        """Whatever is left of its life: its first call is one of those, and may have to compile."""
        return math.inf

    def failed(self, outcome: Outcome, reason: str) -> Exception:
        return ReferenceFailed(f"the reference in its own Runner: {outcome}: {reason}")


class Session:
    """One candidate's examination."""

    ended = Ended

    def __init__(
        self,
        problem: Problem,
        link: Link,
        reference: Link | None,
        backend: str,
        source: str,
        end_candidate: Callable[[], None],
    ) -> None:
        """`end_candidate` returns when no process of the candidate's is left."""
        self.end_candidate = end_candidate
        self.problem, self.link, self.reference = problem, link, reference
        self.backend, self.source = backend, source
        self.config = problem.config
        self.device = problem.device
        self.errors: dict[str, dict[str, Any]] = {}
        self.stage_s: dict[str, float] = {}
        self.timer: Timer | None = None
        self.timing: dict[str, Any] = {}
        self.library_ops = 0  # that were seen in the audited call
        self.undone = 0  # launches, in a call of that kind
        self.kernel_share: float | None = None
        self.kernels = ""
        self.compiled = False
        self.called: set[int] = set()
        self.longest_s = 0.0  # of a call that was compared, the first ones left aside
        self.nulls = problem.nulls()
        self.lock: int | None = None
        self.starting: int | None = None

    def run(self) -> None:
        """Raises Ended; without, the candidate is correct."""
        waited_s = Turn.waited_s
        try:
            self._run()
        finally:
            if self.lock is not None:
                self.stage_s["wait"] = Turn.waited_s - waited_s

    def _run(self) -> None:
        with self._stage("build"):
            self._built()
        checks = self._checks()
        is_proved = self.backend != "torch" and self.config.ablation
        before = 1 + secrets.randbelow(len(checks)) if is_proved else len(checks)
        with self._stage("check"):
            for family, variant in checks[:before]:
                self._check(family, variant)
        if is_proved:
            with self._stage("proof"):
                self._audit()
        with self._stage("check"):
            for family, variant in checks[before:]:
                self._check(family, variant)
            if self.nulls is not None:
                self.nulls.refuse()
        if self.reference is not None and self.config.timing and self.config.timed_calls:
            with self._stage("time"):
                self._time()
        with self._stage("check"):
            self._check_again()
        if is_proved:
            with self._stage("proof"):
                self._prove()
        if self.timer is not None:
            if self.timer.is_slow or not self.timer.is_sure or self.config.compile_baseline:
                with self._stage("alone"):
                    self.end_candidate()
                    self.timer.measure_afterwards()
            self.timing = self.timer.findings()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.stage_s[name] = self.stage_s.get(name, 0.0) + time.monotonic() - started

    def _built(self) -> None:
        frame = self.link.answer(Say.BUILT)
        status = Status(frame.status)
        if status is Status.OK:
            self.compiled = True
            loaded = frame.values[0]
            if loaded == Loaded.BY_SEED:
                if not self.problem.random_state:
                    raise Ended(Outcome.REJECTED, "it claims a state that it cannot have")
                self.problem.use_state_drawn_at_construction()
            return
        text = self.link.text()
        if status is Status.NO_MODEL:
            raise Ended(Outcome.FORMAT_ERROR, "the code defines no class ModelNew", compiled=False)
        if status is Status.OUT_OF_MEMORY:
            raise Ended(Outcome.OUT_OF_MEMORY, "it ran out of memory while it was built", compiled=False)
        if status is Status.NO_STATE:
            wanted = ", ".join(f"{name} {list(spec.shape)}" for name, spec in self.problem.state_specs[:20])
            reason = "the reference's parameters cannot be loaded into it"
            told = f"{reason}: ModelNew must hold them under the same names, or with the same shapes in the same order."
            told += f"\nThe reference has: {wanted}.\nModelNew has: {feedback.harmless(text).strip() or 'none'}."
            self.compiled = True
            raise Ended(Outcome.WRONG_OUTPUT, reason, feedback.bounded(told))
        raise self._failure(Outcome.COMPILE_ERROR, text, compiled=False)

    def _failure(self, outcome: Outcome, text: str, compiled: bool) -> Ended:
        if not compiled and feedback.BUILD_FAILED in text:
            told = feedback.compile_error(text)
            return Ended(outcome, feedback.bounded(told.splitlines()[0], 300), told, compiled=compiled)
        told = feedback.exception(text, source=self.source, file="candidate.py")
        return Ended(outcome, feedback.last_line(text), told, compiled=compiled)

    def compile_for_target(self) -> None:
        """Raises Ended if the kernels do not compile for the architecture that was asked for.

        Whatever else ends it here did not where kernels are interpreted: that is a compile error too.
        """
        try:
            self._built()
            self._ask_for_call(0, 0, Mode.FOR_TARGET)
            if self.link.answer(Say.CALL).status != Status.OK:
                raise self._failure(Outcome.COMPILE_ERROR, self.link.text(), compiled=False)
        except Ended as end:
            if end.outcome in (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.CRASHED):
                raise
            where = f"it does not compile for {self.config.compile_for}"
            told = f"Triton's interpreter ran it, but {where}:\n{end.feedback}"
            reason = f"{where}: {end.reason}"
            raise Ended(Outcome.COMPILE_ERROR, reason, feedback.bounded(told), compiled=False) from None
        self.kernels = self._kernel_facts()

    def _kernel_facts(self) -> str:
        return feedback.bounded(only_facts(self.link.text()), KERNELS)

    def _checks(self) -> list[tuple[str, Variant]]:
        plain, *hidden = self.problem.variants
        families = self.problem.families
        wanted = [(families[i % len(families)], plain) for i in range(self.config.checks)]
        return [*wanted[:1], *(("own", variant) for variant in hidden), *wanted[1:]]

    # ---- correctness

    def _check_again(self) -> None:
        others = [family for family in self.problem.families if family != "own"] or ["own"]
        for _ in range(min(AGAIN, self.config.checks - 1)):
            family = others.pop(secrets.randbelow(len(others))) if others else "own"
            self._check(family, self.problem.variants[0])

    def _check(self, family: str, variant: Variant, mode: Mode = Mode.PLAIN, slot: int | None = None) -> bool:
        """One call on fresh inputs. Ended if it fails, or, in the ablation, whether it still passes.

        Who dies there or does not come back depends on what its kernels compute, say a number of steps: it has to be
        asked no more.
        """
        slot = secrets.randbelow(variant.slots) if slot is None else slot
        # The first call of a shape compiles, mostly: on the CPU, for longer than others could be kept from being timed.
        number = self.problem.variants.index(variant)
        is_first = number not in self.called
        with ExitStack() as held:
            turn = held.enter_context(shared(self.lock))
            sample = self.sample(family, second=variant.sizes is not None)
            turn.pause()
            if self.nulls is not None:
                self.nulls.judge(sample)
            before = self._prepare(variant, slot, sample)
            free_memory(self.device)
            if is_first:
                held.close()
            asked = time.monotonic()
            self._ask_for_call(slot, number, mode)
            is_held = not is_first and self.link.wait(HELD_S)
            if not is_held:
                held.close()
            most_s = math.inf if mode is Mode.PLAIN else ABLATED_S + self.longest_s - (time.monotonic() - asked)
            frame = self.link.answer(Say.CALL, most_s=max(most_s, 0.0))
            if mode is Mode.PLAIN and not is_first:
                self.longest_s = max(self.longest_s, time.monotonic() - asked)
            self.called.add(number)
            self.undone = frame.values[1]
            if mode is not Mode.PLAIN and frame.status != Status.OK:
                return False
            with self._said_of(variant):
                self.refuse_status(frame)
            if not is_held:
                held.enter_context(shared(self.lock))
            results = self._compared(variant, slot, sample)
            if mode is not Mode.PLAIN:
                return all(t.passes(r) for t, r in zip(sample.tolerances, results, strict=True))
            self._record(variant, sample, results)
            self.refuse_values(variant, sample.family, sample.tolerances, results)
            self._refuse_changed_inputs(variant, slot, sample, before)
        return True

    def _compared(self, variant: Variant, slot: int, sample: Sample) -> list[ComparisonResult]:
        found = [one.clone() for one in self.problem.found(self.link.outputs, variant, slot)]
        return read_comparisons(
            [
                ops.compare(one, wanted, rtol=allowed.rtol, atol=allowed.atol)
                for one, wanted, allowed in zip(found, sample.expected, sample.tolerances, strict=True)
            ]
        )

    def sample(self, family: str, second: bool = False) -> Sample:
        """Inputs of the family; the task's own if it says something at times only, and did while the task was prepared.

        That is no fault of the candidate, and none of the harness. A softmax in bfloat16 of products around 1,000 is
        such a case: it is right where no two of them are near each other.
        """
        try:
            return self.problem.sample(family, second)
        except Refused:
            if family == "own":
                raise
        return self.problem.sample("own", second)

    def _ask_for_call(self, slot: int, variant: int, mode: Mode) -> None:
        self.link.ask(Say.CALL, slot, 1, variant, int(mode))

    def _prepare(self, variant: Variant, slot: int, sample: Sample) -> Tensor:
        """Inputs written, outputs poisoned, nothing left for the device to do; the inputs' hashes."""
        problem = self.problem
        problem.write(variant, slot, [*sample.tensors, *sample.cotangents])
        start = slot * variant.output_stride
        fill_random(self.link.outputs.bytes[start : start + variant.output_stride], problem.poison)
        hashes = problem.fingerprint.of(problem.written(variant, slot))
        self.synchronise()
        return hashes

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def _said_of(self, variant: Variant) -> Iterator[None]:
        """Who ends here is told the sizes, if they are others than the task's."""
        try:
            yield
        except Ended as end:
            if variant.sizes is None:
                raise
            told = feedback.bounded(f"{end.feedback}\n{_inputs(variant)}")
            raise Ended(end.outcome, end.reason, told, end.compiled) from None

    def refuse_status(self, frame: Frame) -> None:
        status = Status(frame.status)
        if status is Status.OK:
            return
        text = self.link.text()
        if status is Status.WRONG_STRUCTURE:
            raise Ended(Outcome.WRONG_OUTPUT, feedback.bounded(" ".join(feedback.harmless(text).split()), 300))
        if status is Status.OUT_OF_MEMORY:
            raise Ended(
                Outcome.OUT_OF_MEMORY, "it ran out of memory", self._failure(Outcome.CRASHED, text, True).feedback
            )
        raise self._failure(Outcome.RUNTIME_ERROR, text, compiled=True)

    def _record(self, variant: Variant, sample: Sample, results: Sequence[ComparisonResult]) -> None:
        for name, result, allowed in zip(variant.names, results, sample.tolerances, strict=True):
            worst = self.errors.get(name)
            if worst is None or (result.mismatches, result.relative_error) >= (
                worst["mismatches"],
                worst["relative_error"],
            ):
                self.errors[name] = {
                    "name": name,
                    "elements": result.elements,
                    "mismatches": result.mismatches,
                    "max_abs_error": result.max_abs_error,
                    "max_rel_error": result.max_rel_error,
                    "relative_error": result.relative_error,
                    "reference_error": allowed.reference_error,
                }

    def refuse_values(
        self,
        variant: Variant,
        family: str,
        tolerances: Sequence[tolerance.Tolerance],
        results: Sequence[ComparisonResult],
        when: str = "",
    ) -> None:
        for name, spec, result, allowed in zip(variant.names, variant.output_specs, results, tolerances, strict=True):
            if result.mismatches:
                told = feedback.wrong_values(
                    name, result, shape=spec.shape, dtype=spec.dtype, rtol=allowed.rtol, atol=allowed.atol
                )
            elif not allowed.passes(result):
                told = (
                    f"{name} is less precise than the task asks for: its relative error is "
                    f"{result.relative_error:.2g}, more than {allowed.relative:.2g}; the reference's own is "
                    f"{allowed.reference_error:.2g}."
                )
            else:
                continue
            where = when + _inputs(variant, f"{_KINDS[family]}, ")
            if self.device.type == "cuda" and speaks_of_streams(self.source):
                where += " If it has streams of its own, they wait for the caller's, and the caller's waits for them."
            raise Ended(Outcome.WRONG_OUTPUT, told.splitlines()[0], f"{told}\n{where}")

    def _refuse_changed_inputs(self, variant: Variant, slot: int, sample: Sample, before: Tensor) -> None:
        """What the reference writes to an input has to be there; other inputs stay as they are."""
        written = self.problem.written(variant, slot)
        after = self.problem.fingerprint.of(written)
        for index, same in enumerate((before == after).tolist()):
            if index not in sample.changed and not same:
                raise Ended(Outcome.WRONG_OUTPUT, f"it wrote to input {index}, which the reference leaves as it is")
        if not sample.changed:
            return
        results = read_comparisons(
            [
                ops.compare(written[index], wanted, rtol=allowed.rtol, atol=allowed.atol)
                for index, (wanted, allowed) in sample.changed.items()
            ]
        )
        for (index, (_, allowed)), result in zip(sample.changed.items(), results, strict=True):
            if not allowed.passes(result):
                spec = variant.input_specs[index]
                told = feedback.wrong_values(
                    f"input {index}", result, shape=spec.shape, dtype=spec.dtype, rtol=allowed.rtol, atol=allowed.atol
                )
                raise Ended(
                    Outcome.WRONG_OUTPUT, told.splitlines()[0], f"{told}\nThe reference writes to input {index}."
                )

    # ---- proof of work

    def _audit(self) -> None:
        """The result, which is compared like any, has to come from the candidate's own kernels."""
        if self.backend in BUILDS and (call := library_call(self.source)) is not None:
            raise self._no_kernel(f"{call} is the library's, where nobody sees it at work")
        self.link.forget_text()
        values, sample = self._observe(Mode.AUDITED)
        audit = Audit(*values[:6])
        self.library_ops = audit.library_ops
        self.kernels = self._kernel_facts()
        if audit.launches + audit.replays < 1:
            raise self._no_kernel(f"no {self.backend} kernel was launched")
        if audit.reached < 1:
            raise self._no_kernel("nothing that its kernels wrote is in what it returns")
        idle = audit.moving
        if any(math.prod(spec.shape) > 1 for spec in self.problem.variants[0].output_specs):
            idle = max(idle, audit.moving + audit.small)  # one number cannot be the result, but can be a probe
        if not audit.replays and idle >= audit.launches:
            if audit.library_ops:
                raise self._no_kernel("its kernels only copy or fill what the library computed")
            if not self._is_rearranged(sample):
                raise self._no_kernel("its kernels only copy or fill, and no input has what comes out")

    def _prove(self) -> None:
        """On a GPU, in which time; and that without them it does not come out. What these calls leave behind may be
        wrong, so they are the last."""
        if self.device.type == "cuda" and self.config.profile:
            self._measure_share()
        for mode in (Mode.UNDONE, Mode.SPOILED, Mode.ABLATED) if self.library_ops else (Mode.SPOILED, Mode.ABLATED):
            try:
                passes = self._check(self._telling_family(), self.problem.variants[0], mode)
            except Ended as end:
                if end.outcome in (Outcome.CRASHED, Outcome.TIMEOUT):
                    return
                raise
            if passes and mode is not Mode.UNDONE:
                raise self._no_kernel("with its kernels switched off the output is the same")
            if passes and self.undone:
                raise self._no_kernel("the output is the same with what they were given in place of what they wrote")

    def _is_rearranged(self, sample: Sample) -> bool:
        """Whether what has to come out consists of what is there: of inputs, parameters, zeros and ones, as after a
        transposition. Nothing has to be computed for that."""
        state = [*self.problem.module.parameters(), *self.problem.module.buffers()]
        with torch.no_grad():
            for spec, expected in zip(self.problem.variants[0].output_specs, sample.expected, strict=True):
                numbers = expected.flatten()
                places = torch.randint(len(numbers), (min(len(numbers), REARRANGED),), device=numbers.device)
                numbers = numbers[places].to(spec.torch_dtype)
                there = (numbers == 0) | (numbers == 1)
                for one in [*sample.tensors, *state]:
                    there |= torch.isin(numbers, one.flatten().to(spec.torch_dtype))
                if not there.all():
                    return False
        return True

    def _telling_family(self) -> str:
        """Positive inputs can make a kernel's work invisible, as that of a relu."""
        return "normal" if "normal" in self.problem.families else "own"

    def _no_kernel(self, why: str) -> Ended:
        told = f"ModelNew must compute its result in {self.backend} kernels of its own: {why}."
        return Ended(Outcome.REJECTED, f"no kernel of its own: {why}", told)

    def _observe(self, mode: Mode) -> tuple[tuple[int, ...], Sample]:
        """What the Runner saw of a call, and its inputs. That convicts; nobody is acquitted by it."""
        variant = self.problem.variants[0]
        slot = secrets.randbelow(variant.slots)
        with shared(self.lock) as turn:
            sample = self.sample(self._telling_family())
            turn.pause()
            self._prepare(variant, slot, sample)
            free_memory(self.device)
            self._ask_for_call(slot, 0, mode)
            self.link.wait(HELD_S)
        frame = self.link.answer(Say.CALL)
        self.refuse_status(frame)
        if mode is Mode.AUDITED:
            with shared(self.lock):
                results = self._compared(variant, slot, sample)
            self.refuse_values(variant, sample.family, sample.tolerances, results)
        return frame.values, sample

    def _measure_share(self) -> None:
        for _ in range(2):
            own, everything, records = self._observe(Mode.PROFILED)[0][:3]
            if records > 0 and 0 <= own <= everything and everything > 0:
                self.kernel_share = own / everything
                break
        else:
            raise self._no_kernel(feedback.UNRECORDED)
        if own == 0:
            raise self._no_kernel("none of the time on the device was spent in them")
        if self.kernel_share < self.config.min_kernel_share:
            share, least = 100 * self.kernel_share, 100 * self.config.min_kernel_share
            raise self._no_kernel(f"only {share:.3g}% of the time on the device is spent in them, not {least:.3g}%")

    # ---- time

    def _time(self) -> None:
        from kernel_coder.judge.examiner.timing.timer import Timer

        assert self.reference is not None
        if self.starting is not None:
            await_closed(self.starting, STARTING_S)
        self.timer = Timer(self, self.reference)
        assert self.problem.baseline is not None
        self.timer.measure(self.problem.baseline)

    def findings(self) -> dict[str, Any]:
        return {
            "errors": list(self.errors.values()),
            "stage_s": self.stage_s,
            "kernel_share": self.kernel_share,
            "kernels": self.kernels,
            "compiled": self.compiled,
            **self.timing,
        }


def _inputs(variant: Variant, kind: str = "") -> str:
    """What is said of them."""
    shapes = ", ".join(str(list(one.shape)) for one in variant.input_specs)
    said = f"Inputs: {kind}shapes {shapes}."
    if variant.sizes is not None:
        said += f" The task's sizes were others there ({variant.sizes}): ModelNew has to take them too."
    return said


_KINDS = {
    "own": "of the task's own kind",
    "normal": "standard normal",
    "scaled": "the task's own times 10, with random signs",
    "shifted": "the task's own plus 5",
    "structured": "with constant rows, zero rows and a few elements of 100 and -100",
}
