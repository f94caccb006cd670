"""Checks of single calls: fresh inputs for a Runner, and what its outputs, its status and its inputs must be."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge import feedback
from kernel_coder.judge.examiner.input_families import INPUT_FAMILIES
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import HELD_S, Link
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import fill_random
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.examiner.source_checks import speaks_of_streams
from kernel_coder.judge.examiner.task_memory import Variant, outputs_at
from kernel_coder.judge.examiner.tolerance import Tolerance
from kernel_coder.judge.gpu.turns import GpuTurns, synchronise
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.channel import Frame
from kernel_coder.judge.wire.messages import Mode, Say, Status
from kernel_coder.judge.wire.shared_tensors import free_memory
from kernel_coder.ops.compare import ComparisonResult, read_comparisons

ABLATED_S = 10.0
"""Seconds that a call whose own kernels do nothing may take longer than the longest other one. After that it counts as
one with another result."""


class Checker:
    """Asks one candidate for calls on fresh inputs and compares what comes back. Raises Judged if it is wrong."""

    def __init__(self, task: PreparedTask, link: Link, source: str, turns: GpuTurns) -> None:
        """
        Args:
            task: what the candidate has to compute.
            link: to its Runner.
            source: its code.
            turns: on the device.
        """
        self.task, self.link, self.source, self.turns = task, link, source, turns
        self.errors: dict[str, dict[str, Any]] = {}
        """The worst comparison of each output, by name; fields of ``verdict.OutputError``."""

        self.nulls = task.null_candidates()
        self.undone = 0
        """Launches whose results were undone in the last call that was asked for in the mode ``UNDONE``."""

        self._called: set[int] = set()  # numbers of variants
        self._longest_s = 0.0  # of the calls that were compared, without first ones

    def check(self, family: str, variant: Variant, mode: Mode = Mode.PLAIN, slot: int | None = None) -> bool:
        """One call on a fresh sample.

        In a mode that switches the candidate's own kernels off, a call that fails, crashes or hangs is an answer too:
        the result depends on these kernels.

        Args:
            family: of the inputs.
            variant: sizes of the inputs.
            mode: whether the candidate's own kernels work in the call.
            slot: where the inputs are put; None: at a random place.

        Returns:
            True; in such a mode, whether the outputs are right.

        Raises:
            Judged: something is wrong, in the plain mode.
        """
        slot = secrets.randbelow(variant.slots) if slot is None else slot
        # The first call of each variant mostly compiles. That takes too long to keep other processes from timing.
        number = self.task.variants.index(variant)
        is_first = number not in self._called
        with ExitStack() as held:
            turn = held.enter_context(self.turns.shared())
            sample = self.task.sample(family, variant)
            turn.pause()
            if self.nulls is not None:
                self.nulls.try_on(sample)
            before = self.write(variant, slot, sample)
            free_memory(self.task.device)
            if is_first:
                held.close()
            asked = time.monotonic()
            self.ask_for_call(slot, number, mode)
            is_held = not is_first and self.link.wait(HELD_S)
            if not is_held:
                held.close()
            most_s = math.inf if mode is Mode.PLAIN else ABLATED_S + self._longest_s - (time.monotonic() - asked)
            frame = self.link.answer(Say.CALL, most_s=max(most_s, 0.0))
            if mode is Mode.PLAIN and not is_first:
                self._longest_s = max(self._longest_s, time.monotonic() - asked)
            self._called.add(number)
            self.undone = frame.values[1]
            if mode is not Mode.PLAIN and frame.status != Status.OK:
                return False
            with self._telling_sizes(variant):
                self.refuse_status(frame)
            if not is_held:
                held.enter_context(self.turns.shared())
            results = self.compare(variant, slot, sample)
            if mode is not Mode.PLAIN:
                return all(t.passes(r) for t, r in zip(sample.tolerances, results, strict=True))
            self._record(variant, sample, results)
            self.refuse_values(variant, sample.family, sample.tolerances, results)
            self._refuse_changed_inputs(variant, slot, sample, before)
        return True

    def write(self, variant: Variant, slot: int, sample: Sample) -> Tensor:
        """Write the inputs to shared memory and random bits to the outputs, and wait until the device has done that.
        Returns the inputs' hashes."""
        memory, draws = self.task.memory, self.task.draws
        memory.write(variant, slot, [*sample.tensors, *sample.cotangents])
        start = slot * variant.output_stride
        fill_random(self.link.outputs.bytes[start : start + variant.output_stride], draws.poison)
        hashes = self.task.fingerprint.of(memory.written(variant, slot))
        synchronise(self.task.device)
        return hashes

    def ask_for_call(self, slot: int, variant: int, mode: Mode) -> None:
        """Ask for one call on the inputs in a slot; `variant` is a number."""
        self.link.ask(Say.CALL, slot, 1, variant, int(mode))

    def compare(self, variant: Variant, slot: int, sample: Sample) -> list[ComparisonResult]:
        """Compare the outputs in shared memory with those that are expected."""
        found = [one.clone() for one in outputs_at(self.link.outputs, variant, slot)]
        return read_comparisons(
            [
                ops.compare(one, wanted, rtol=allowed.rtol, atol=allowed.atol)
                for one, wanted, allowed in zip(found, sample.expected, sample.tolerances, strict=True)
            ]
        )

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

    # ---- what is wrong

    def refuse_status(self, frame: Frame) -> None:
        """Raise Judged if the Runner says that the call failed."""
        status = Status(frame.status)
        if status is Status.OK:
            return
        text = self.link.text()
        if status is Status.WRONG_STRUCTURE:
            raise Judged(Outcome.WRONG_OUTPUT, feedback.bounded(" ".join(feedback.harmless(text).split()), 300))
        if status is Status.OUT_OF_MEMORY:
            told = failure(Outcome.CRASHED, text, self.source).feedback
            raise Judged(Outcome.OUT_OF_MEMORY, "it ran out of memory", told)
        raise failure(Outcome.RUNTIME_ERROR, text, self.source)

    def refuse_values(
        self,
        variant: Variant,
        family: str,
        tolerances: Sequence[Tolerance],
        results: Sequence[ComparisonResult],
        when: str = "",
    ) -> None:
        """Raise Judged if an output is further from what is expected than its tolerance allows.

        Args:
            variant: sizes of the inputs.
            family: of the inputs.
            tolerances: of each output.
            results: of the comparison of each output.
            when: said before the description of the inputs.
        """
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
            where = when + _describe_inputs(variant, f"{INPUT_FAMILIES[family].description}, ")
            if self.task.device.type == "cuda" and speaks_of_streams(self.source):
                where += " If it has streams of its own, they wait for the caller's, and the caller's waits for them."
            raise Judged(Outcome.WRONG_OUTPUT, told.splitlines()[0], f"{told}\n{where}")

    def _refuse_changed_inputs(self, variant: Variant, slot: int, sample: Sample, before: Tensor) -> None:
        """Raise Judged unless inputs hold what the reference writes to them, and all others are as they were."""
        written = self.task.memory.written(variant, slot)
        after = self.task.fingerprint.of(written)
        for index, same in enumerate((before == after).tolist()):
            if index not in sample.changed and not same:
                raise Judged(Outcome.WRONG_OUTPUT, f"it wrote to input {index}, which the reference leaves as it is")
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
                raise Judged(
                    Outcome.WRONG_OUTPUT, told.splitlines()[0], f"{told}\nThe reference writes to input {index}."
                )

    @contextmanager
    def _telling_sizes(self, variant: Variant) -> Iterator[None]:
        """Add the input sizes to the feedback of a failure, if they are not the task's own."""
        try:
            yield
        except Judged as judged:
            if variant.sizes is None:
                raise
            told = feedback.bounded(f"{judged.feedback}\n{_describe_inputs(variant)}")
            raise Judged(judged.outcome, judged.reason, told, judged.compiled) from None


def failure(outcome: Outcome, text: str, source: str, compiled: bool = True) -> Judged:
    """The end of an examination with an error message of the Runner.

    Args:
        outcome: of the verdict.
        text: the message, with its traceback.
        source: the candidate's code.
        compiled: whether the candidate's code was built.
    """
    if not compiled and feedback.BUILD_FAILED in text:
        told = feedback.compile_error(text)
        return Judged(outcome, feedback.bounded(told.splitlines()[0], 300), told, compiled=compiled)
    told = feedback.exception(text, source=source, file="candidate.py")
    return Judged(outcome, feedback.last_line(text), told, compiled=compiled)


def _describe_inputs(variant: Variant, kind: str = "") -> str:
    shapes = ", ".join(str(list(one.shape)) for one in variant.input_specs)
    said = f"Inputs: {kind}shapes {shapes}."
    if variant.sizes is not None:
        said += f" The task's sizes were others there ({variant.sizes}): ModelNew has to take them too."
    return said
