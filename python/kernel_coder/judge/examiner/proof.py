"""Proof of work: whether the result comes from the candidate's own kernels."""

from __future__ import annotations

import math
import secrets

import torch

from kernel_coder.judge import feedback
from kernel_coder.judge.config import BUILDS
from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import HELD_S
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.examiner.source_checks import library_call
from kernel_coder.judge.language import NAMES, other_language
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.messages import Audit, Mode, Say
from kernel_coder.judge.wire.shared_tensors import free_memory

KERNEL_TEXT = 1000
"""Longest text about the candidate's own kernels in a verdict, in characters."""

REARRANGED = 1 << 16
"""Elements of an output, at most, that are looked for among the inputs and parameters."""


class WorkProof:
    """Looks at single calls of a candidate's, and rejects it if its own kernels do not make the result."""

    def __init__(self, checker: Checker, backend: str) -> None:
        self.checker, self.backend = checker, backend
        self.task, self.link, self.turns = checker.task, checker.link, checker.turns
        self.library_ops = 0
        """Operators of torch that computed something in the audited call."""

        self.kernel_share: float | None = None
        """Share of the time on the device that the candidate's own kernels take; None: not measured."""

        self.kernels = ""
        """What is known of these kernels, as text."""

    def audit(self) -> None:
        """Watch the launches of one call, whose result is compared as any. Raises Judged if the candidate's own kernels
        cannot have made the result."""
        if self.backend in BUILDS and (call := library_call(self.checker.source)) is not None:
            raise self._no_kernel(f"{call} is a library call past torch's dispatcher, where the audit does not see it")
        self.link.forget_text()
        values, sample = self._observe(Mode.AUDITED)
        audit = Audit(*values[:6])
        self.library_ops = audit.library_ops
        self.kernels = self.kernel_facts()
        if audit.launches + audit.replays < 1:
            other = other_language(self.checker.source, self.backend)
            looks = "" if other is None else f"; its code looks like {NAMES[other]}"
            raise self._no_kernel(f"no {self.backend} kernel was launched{looks}")
        if audit.reached < 1:
            raise self._no_kernel("nothing that its kernels wrote is in what it returns")
        idle = audit.moving
        if any(math.prod(spec.shape) > 1 for spec in self.task.variants[0].output_specs):
            idle = max(idle, audit.moving + audit.small)  # a kernel for one number may be a probe, not the work
        if not audit.replays and idle >= audit.launches:
            if audit.library_ops:
                raise self._no_kernel("its kernels only copy or fill what the library computed")
            if not self._is_rearranged(sample):
                raise self._no_kernel("its kernels only copy or fill, and no input has what comes out")

    def prove(self) -> None:
        """Measure the kernels' share of the time, on a GPU; and check that without them the result is another one.

        These calls may leave wrong values behind in the candidate, so they are the last ones.
        """
        config = self.task.config
        if self.task.device.type == "cuda" and config.profile:
            self._measure_share()
        for mode in (Mode.UNDONE, Mode.SPOILED, Mode.ABLATED) if self.library_ops else (Mode.SPOILED, Mode.ABLATED):
            try:
                passes = self.checker.check(self._telling_family(), self.task.variants[0], mode)
            except Judged as judged:
                if judged.outcome in (Outcome.CRASHED, Outcome.TIMEOUT):
                    return  # how long it runs depends on what its kernels compute, so they do compute something
                raise
            if passes and mode is not Mode.UNDONE:
                raise self._no_kernel("with its kernels switched off the output is the same")
            if passes and self.checker.undone:
                raise self._no_kernel("the output is the same with what they were given in place of what they wrote")

    def kernel_facts(self) -> str:
        """What the Runner says of the candidate's kernels."""
        return feedback.bounded(feedback.only_facts(self.link.text()), KERNEL_TEXT)

    def _is_rearranged(self, sample: Sample) -> bool:
        """Whether the expected outputs consist of numbers that are there already: of inputs, parameters, zeros and
        ones, as after a transposition. Then a kernel that only copies does the whole work."""
        module = self.task.reference.module
        state = [*module.parameters(), *module.buffers()]
        with torch.no_grad():
            for spec, expected in zip(self.task.variants[0].output_specs, sample.expected, strict=True):
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
        """Inputs that show the work of every kernel. Positive ones can hide it: a relu does nothing to them."""
        return "normal" if "normal" in self.task.families else "own"

    def _no_kernel(self, why: str) -> Judged:
        told = f"ModelNew must compute its result in {self.backend} kernels of its own: {why}."
        return Judged(Outcome.REJECTED, f"no kernel of its own: {why}", told)

    def _observe(self, mode: Mode) -> tuple[tuple[int, ...], Sample]:
        """What the Runner saw of one call, and the sample. The Runner's process is the candidate's, so this can only
        be used against the candidate."""
        variant = self.task.variants[0]
        slot = secrets.randbelow(variant.slots)
        with self.turns.shared() as turn:
            sample = self.task.sample(self._telling_family(), variant)
            turn.pause()
            self.checker.write(variant, slot, sample)
            free_memory(self.task.device)
            self.checker.ask_for_call(slot, 0, mode)
            self.link.wait(HELD_S)
        frame = self.link.answer(Say.CALL)
        self.checker.refuse_status(frame)
        if mode is Mode.AUDITED:
            with self.turns.shared():
                results = self.checker.compare(variant, slot, sample)
            self.checker.refuse_values(variant, sample.family, sample.tolerances, results)
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
        min_share = self.task.config.min_kernel_share
        if self.kernel_share < min_share:
            share, least = 100 * self.kernel_share, 100 * min_share
            raise self._no_kernel(f"only {share:.3g}% of the time on the device is spent in them, not {least:.3g}%")
