"""Checks of single calls: send fresh inputs to a Runner and check the status, the outputs and the inputs afterwards."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from kernel_coder.judge import feedback
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import HELD_S, Link
from kernel_coder.judge.examiner.output_checks import OutputChecker, describe_inputs
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import fill_random
from kernel_coder.judge.examiner.samples import Sample, same_bits
from kernel_coder.judge.examiner.task_memory import Variant, outputs_at
from kernel_coder.judge.examiner.tolerance import narrowed_for_ablation
from kernel_coder.judge.gpu.turns import GpuTurns, synchronise
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.channel import Frame
from kernel_coder.judge.wire.messages import Audit, Mode, Say, Status
from kernel_coder.judge.wire.shared_tensors import free_memory
from kernel_coder.judge.wire.trees import floating

MANY_ZEROS = 1 / 16
"""Share of an output's elements from which zeros count as a part of the work."""

MAX_COMPARED_ELEMENTS = 1 << 22
"""Approximate upper limit of the elements of an output that are looked at in an ablation. It bounds the memory."""

ABLATED_S = 10.0
"""Upper limit, in seconds, of how much longer a call whose own kernels do nothing may take than the longest other call.
A longer call counts as one with a different result."""

CHECKED = frozenset({Mode.PLAIN, Mode.AUDITED, Mode.GRADIENTS, Mode.INFERENCE})
"""Modes in which the candidate's result must be right."""

NEAR, TIMES_AGAIN = 0.5, 3
"""An error above this share of its bound counts as near it. Such families are then drawn this many times more."""

AHEAD_BYTES = 64 << 20
"""Approximate upper limit of the memory, in bytes, of samples that are made while a call of the candidate compiles.
With larger samples a task could need more memory than was estimated for it."""

DESTROYED_SHARE = 0.25
"""Share of the output's elements that must be wrong once the candidate's own kernels do nothing. If fewer are wrong,
the library made the result. See :func:`is_destroyed` for the elements that count: most of what a sparse update returns
needs no work."""


class Checker(OutputChecker):
    """Asks one candidate's Runner for calls on fresh inputs and compares the results. Raises Judged if one is wrong."""

    def __init__(self, task: PreparedTask, link: Link, source: str, turns: GpuTurns) -> None:
        """
        Args:
            task: the task that the candidate solves.
            link: the link to the candidate's Runner.
            source: the candidate's source.
            turns: turns on the device.
        """
        super().__init__(task, link, source)
        self.turns = turns
        self.nulls = task.null_candidates()
        self.is_audited = False
        """Whether every checked call is observed, except for the first one of each variant."""

        self.audits: list[Audit] = []
        """What was observed in these calls."""

        self.specialised: str | None = None
        """Why the candidate works only for the task's own sizes; None: no call has shown that."""

        self.is_deterministic: bool | None = None
        """Whether two calls on the same inputs gave the same bits; None: not tried."""

        self.undone = 0
        """Number of launches whose results were undone in the last call in the mode ``UNDONE``."""

        self.families_ahead: list[str] = []
        """Families that will be checked, once no call compiles any more, on inputs of the task's own sizes."""

        self._ahead: dict[str, list[Sample]] = {}  # their samples that have been made already

        self._called: set[int] = set()  # numbers of the variants that had a call
        self._longest_s = 0.0  # longest checked call, not counting each variant's first one

    def check(self, family: str, variant: Variant, mode: Mode = Mode.PLAIN) -> bool:
        """Make one call on a fresh sample; see :meth:`check_all`."""
        return self.check_all([family], variant, mode)

    def check_all(
        self, families: Sequence[str], variant: Variant, mode: Mode = Mode.PLAIN, *, repeats: bool = False
    ) -> bool:
        """Make one request with a call on a fresh sample of each family, in neighbouring slots of the shared memory.

        In a mode that switches the candidate's own kernels off, a call may fail, crash or hang. That shows too that the
        result depends on these kernels.

        Args:
            families: families of the inputs; at most as many as the variant has slots.
            variant: sizes of the inputs.
            mode: how the call is made.
            repeats: make the first call once more, on the same inputs, if there is a slot for it.

        Returns:
            True. In an ablation: whether the result was still right, that is, whether less than :data:`DESTROYED_SHARE`
            of the elements are wrong.

        Raises:
            Judged: something is wrong in a mode of :data:`CHECKED`.
        """
        repeats &= len(families) < variant.slots and not self.task.reference.changes_inputs
        calls = len(families) + repeats
        slot = secrets.randbelow(variant.slots - calls + 1)
        # The first call of each variant often compiles and tunes. That takes too long to keep other processes from
        # timing meanwhile. Observed launches take longer than plain ones, which would mislead autotuning.
        number = self.task.variants.index(variant)
        is_first = number not in self._called
        if mode is Mode.PLAIN and self.is_audited and not is_first:
            mode = Mode.AUDITED
        is_checked = mode in CHECKED
        if self.task.is_large and self._called:
            self.link.prepare(0)  # the oracle may need the memory of the last outputs for the next inputs
        with ExitStack() as held:
            turn = held.enter_context(self.turns.shared())
            samples: list[Sample] = []
            hashes = []
            for family in families:
                made = number == 0 and self._ahead.get(family)
                samples.append(made.pop() if made else self.task.sample(family, variant))
                turn.pause()
                if self.nulls is not None:
                    self.nulls.try_on(samples[-1])
                hashes.append(self.write(variant, slot + len(samples) - 1, samples[-1]))
            if repeats:
                hashes.append(self.write(variant, slot + calls - 1, samples[0]))
                samples.append(samples[0])
            free_memory(self.task.device)
            if is_first:
                held.close()
            asked = time.monotonic()
            self.ask_for_call(slot, number, mode, calls)
            if is_first:
                self._make_ahead()
            is_held = not is_first and self.link.wait(HELD_S)
            if not is_held:
                held.close()
            most_s = math.inf if is_checked else ABLATED_S + self._longest_s - (time.monotonic() - asked)
            frame = self.link.answer(Say.CALL, most_s=max(most_s, 0.0))
            if is_checked and not is_first:
                self._longest_s = max(self._longest_s, time.monotonic() - asked)
            self._called.add(number)
            self.undone = frame.values[1]
            if not is_checked and frame.status != Status.OK:
                return False
            if self._is_special(frame, variant) or (mode is Mode.GRADIENTS and frame.status == Status.RAISED):
                return True
            with self._telling_sizes(variant):
                self.refuse_status(frame)
            if mode is Mode.AUDITED:
                audit = Audit(*frame.values[:7])
                if number == 0:
                    self.audits.append(audit._replace(library_work=audit.library_work // calls))
                elif audit.launches + audit.replays < 1 and self.specialised is None:
                    self.specialised = f"it launches no kernel of its own on other sizes ({variant.sizes})"
            if not is_held:
                held.enter_context(self.turns.shared())
            kept = [
                self._checked(variant, slot + place, sample, hashes[place], is_checked)
                for place, sample in enumerate(samples)
            ]
            if repeats:
                pair = (outputs_at(self.link.outputs, variant, place) for place in (slot, slot + calls - 1))
                self.is_deterministic = all(same_bits(a, b) for a, b in zip(*pair, strict=True))
        return all(kept)

    def _make_ahead(self) -> None:
        """Make samples for later checks until the Runner answers. This costs no time: a first call mostly compiles."""
        plain, made = self.task.variants[0], 0
        while self.families_ahead and not self.link.wait(0.0):
            made += plain.input_stride + 2 * plain.output_stride  # expected outputs are in float64
            if made > AHEAD_BYTES:
                return
            family = self.families_ahead.pop(0)
            with self.turns.shared():
                self._ahead.setdefault(family, []).append(self.task.sample(family, plain))

    def _checked(self, variant: Variant, slot: int, sample: Sample, before: Tensor, is_checked: bool) -> bool:
        """Compare the outputs of one call. In a mode of CHECKED, raise Judged if one is wrong and return True
        otherwise. In an ablation, return whether they are still right."""
        if not is_checked:
            pairs = zip(sample.tolerances, sample.expected, strict=True)
            sample = replace(sample, tolerances=[narrowed_for_ablation(*pair) for pair in pairs])
            results = self.compare(variant, slot, sample)
            found = outputs_at(self.link.outputs, variant, slot)
            is_right = all(t.passes(r) for t, r in zip(sample.tolerances, results, strict=True))
            return is_right or not is_destroyed(found, sample)
        self.refuse_outputs(variant, slot, sample, before)
        return True

    def check_near_ones_again(self) -> None:
        """Check families again on fresh inputs where an error came near its bound. Otherwise a candidate that is wrong
        only on some inputs could be submitted until it passes."""
        for (family, number), part in list(self.near.items()):
            if part > NEAR:
                for _ in range(TIMES_AGAIN):
                    self.check(family, self.task.variants[number])

    @contextmanager
    def saying(self, when: str) -> Iterator[None]:
        """Begin the description of the inputs in feedback about calls in this block with `when`."""
        before, self.when = self.when, when
        try:
            yield
        finally:
            self.when = before

    def _is_special(self, frame: Frame, variant: Variant) -> bool:
        """Return whether the call raised an error on other sizes than the task's own, and that is tolerated."""
        may = variant.sizes is not None and self.task.config.hidden_shapes == "flag"
        if may and Status(frame.status) is Status.RAISED and self.specialised is None:
            self.specialised = f"it fails on other sizes ({variant.sizes}): {feedback.last_line(self.link.text(), 200)}"
        return may and Status(frame.status) is Status.RAISED

    def write(self, variant: Variant, slot: int, sample: Sample) -> Tensor:
        """Write the inputs to shared memory and random bits to the outputs, and wait until the device has finished.
        Return the inputs' hashes."""
        memory, draws = self.task.memory, self.task.draws
        memory.write(variant, slot, [*sample.tensors, *sample.cotangents])
        start = slot * variant.output_stride
        fill_random(self.link.outputs.bytes[start : start + variant.output_stride], draws.poison)
        hashes = self.task.fingerprint.of(memory.written(variant, slot))
        synchronise(self.task.device)
        return hashes

    def ask_for_call(self, slot: int, variant: int, mode: Mode, calls: int = 1) -> None:
        """Ask for calls on the inputs in `calls` slots, beginning with `slot`. `variant` is the variant's number."""
        self.link.ask(Say.CALL, slot, calls, variant, int(mode))

    # ---- what is wrong

    def refuse_status(self, frame: Frame) -> None:
        """Raise Judged if the Runner's status says that the call failed."""
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

    @contextmanager
    def _telling_sizes(self, variant: Variant) -> Iterator[None]:
        """Add the input sizes to the feedback of a failure in this block, if they are not the task's own."""
        try:
            yield
        except Judged as judged:
            if variant.sizes is None:
                raise
            told = feedback.bounded(f"{judged.feedback}\n{describe_inputs(variant)}")
            raise Judged(judged.outcome, judged.reason, told, judged.compiled) from None


def is_destroyed(found: Sequence[Tensor], sample: Sample) -> bool:
    """Return whether :data:`DESTROYED_SHARE` of the elements of a sample's outputs are wrong in `found`.

    The share must be reached among the elements that need work: they are neither zero nor equal to an input at the same
    place. It may also be reached among the zeros, if these are at least :data:`MANY_ZEROS` of all, as after a ReLU, and
    among the others, if none of them needs work. At most about :data:`MAX_COMPARED_ELEMENTS` elements of each output
    are looked at.
    """
    counts = []
    for one, wanted, allowed in zip(found, sample.expected, sample.tolerances, strict=True):
        step = max(1, wanted.numel() // MAX_COMPARED_ELEMENTS)
        values, expected = one.reshape(-1)[::step].to(wanted.dtype), wanted.reshape(-1)[::step]
        is_zero = expected == 0
        needs_work = ~is_zero
        for given in sample.tensors:
            if given.shape == wanted.shape and floating(given) == floating(wanted):
                needs_work &= given.reshape(-1)[::step].to(wanted.dtype) != expected
        if floating(wanted):
            is_wrong = ~torch.isclose(values, expected, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
        else:
            is_wrong = values != expected
        parts = (needs_work, is_zero, ~is_zero)
        counts.append(torch.stack([some.sum() for part in parts for some in (part, part & is_wrong)]))
    needing, wrong, zeros, wrong_zeros, others, wrong_others = torch.stack(counts).sum(0).tolist()
    groups = [(needing, wrong)] if needing else [(others, wrong_others)]
    if zeros >= MANY_ZEROS * (zeros + others):
        groups.append((zeros, wrong_zeros))
    return any(count and bad >= DESTROYED_SHARE * count for count, bad in groups)


def failure(outcome: Outcome, text: str, source: str, compiled: bool = True) -> Judged:
    """Return the exception that ends an examination because of an error message of the Runner.

    Args:
        outcome: the outcome of the verdict.
        text: the message, with its traceback.
        source: the candidate's code.
        compiled: whether the candidate's code was built.
    """
    if not compiled and feedback.BUILD_FAILED in text:
        told = feedback.compile_error(text)
        return Judged(outcome, feedback.bounded(told.splitlines()[0], 300), told, compiled=compiled)
    told = feedback.exception(text, source=source, file="candidate.py")
    return Judged(outcome, feedback.last_line(text), told, compiled=compiled)
