"""Proof of work: check that the result comes from the candidate's own kernels."""

from __future__ import annotations

import secrets

import torch

from kernel_coder.judge import feedback
from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.examiner.source_checks import hiding_place, reach_reason
from kernel_coder.judge.language import NAMES, other_language
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.messages import ALIASED, HIDDEN, ONLY_OWN, REUSED, Mode, Say
from kernel_coder.judge.wire.shared_tensors import free_memory

KERNEL_TEXT = 1000
"""Upper limit of the text about the candidate's own kernels in a verdict, in characters."""

WATCHED_NOTE = (
    " The judge counts launches of Triton kernels that its file defines and, for cuda and cpp, calls of functions that"
    " torch.utils.cpp_extension has built, or of a library in the candidate's folder that ctypes has opened."
)
"""What an audit observes, for feedback."""

SMALL_LIBRARY_SHARE, SMALL_TASK_FACTOR = 0.1, 0.2
"""If the library does at most this share of the arithmetic, the required share of own kernels in the device time is
multiplied by the second number. Each launch takes about a microsecond, however little it computes."""

UNSEEN = ("compile", "script", "trace", "grad", "backward", "parallel")
"""Text in a candidate that may use the device unseen by an audit: code that torch compiles, fuses, or runs in threads
of its own."""

MAX_SEARCHED_ELEMENTS = 1 << 16
"""Upper limit of the elements of an output that are searched for among the inputs and parameters."""


class WorkProof:
    """Observes single calls of a candidate and rejects it if its own kernels do not make the result."""

    def __init__(self, checker: Checker, backend: str) -> None:
        self.checker, self.backend = checker, backend
        self.task, self.link, self.turns = checker.task, checker.link, checker.turns
        self.library_share: float | None = None
        """Share of the reference's operations that the library does in a call of the candidate; None: not measured."""

        self.kernel_share: float | None = None
        """Share of the device time that the candidate's own kernels take; None: not measured."""

        self.has_aliases: bool | None = None
        """Whether an output shares memory with an input, according to the candidate's process; None: not observed."""

        self.reuses_output: bool | None = None
        """Whether a call overwrites the previous call's output, according to the candidate's process; None: not
        observed."""

        self.memory_bytes: int | None = None
        """GPU memory that a call allocates, in bytes, according to the candidate's process."""

        self.needs_profile = True
        """Whether the kernels' share of the device time is unknown without a profile."""

        self.kernels = ""
        """Facts about the candidate's own kernels, as text."""

    def audit(self) -> None:
        """Evaluate what was observed in the checked calls so far. Raise Judged if the candidate's own kernels cannot
        have made the results."""
        audits = self.checker.audits
        if not audits:  # the only call was the first one, which is not observed
            self.link.forget_text()
            self.checker.check(self._telling_family(), self.task.variants[0], Mode.AUDITED)
        text = self.link.text()
        self.kernels = self.kernel_facts()
        self.has_aliases = ALIASED in text.splitlines()
        self.reuses_output = REUSED in text.splitlines()
        if any(one.hidden for one in audits):
            names = [line.removeprefix(HIDDEN) for line in text.splitlines() if line.startswith(HIDDEN)]
            name = feedback.bounded(names[0] if names else "a function", 200)
            raise self._no_kernel(
                f"{name} is a library call that the audit does not see (on another thread, for example)"
            )
        if where := hiding_place(self.checker.source, self.backend):
            raise self._no_kernel(where)
        if all(one.launches + one.replays < 1 for one in audits):
            other = other_language(self.checker.source, self.backend)
            looks = "" if other is None else f"; its code looks like {NAMES[other]}"
            raise self._no_kernel(f"no {self.backend} kernel was launched{looks}", WATCHED_NOTE)
        if all(one.reached < 1 for one in audits):
            raise self._no_kernel("nothing that its kernels wrote is in what it returns")
        if all(not one.replays and one.moving >= one.launches for one in audits):
            if any(one.library_ops for one in audits):
                raise self._no_kernel("its kernels only copy or fill what the library computed")
            with self.turns.shared():
                sample = self.task.sample("own", self.task.variants[0])
            if not self._is_rearranged(sample):
                raise self._no_kernel("its kernels only copy or fill, and the output has numbers that no input has")
        self._weigh_library(max(one.library_work for one in audits))
        self.needs_profile = not self._launches_only_own_kernels(text)

    def _launches_only_own_kernels(self, text: str) -> bool:
        """Return whether nothing but own Triton kernels, views and allocations used the device in the audited calls.
        Then all of the device time is theirs, and no profile is needed. A profiler takes seconds to start.

        The report comes from the candidate's process. So a source that could reach the Runner is profiled.
        """
        source = self.checker.source
        if self.backend != "triton" or any(text in source for text in UNSEEN) or reach_reason(source) is not None:
            return False
        return ONLY_OWN in text.splitlines() and not any(one.library_ops or one.replays for one in self.checker.audits)

    def _weigh_library(self, work: int) -> None:
        """Raise Judged if the library does a larger share of the reference's operations than allowed."""
        whole = self.task.reference_work()
        self.library_share = min(max(work, 0) / whole, 1.0) if whole else 0.0
        least = self.task.config.min_kernel_share
        if self.library_share > 1 - least + 1e-9:
            raise self._no_kernel(
                f"torch's operators do {100 * self.library_share:.3g}% of the arithmetic, and at most"
                f" {100 * (1 - least):.3g}% are allowed beside own kernels"
            )

    def prove(self) -> None:
        """On a GPU, measure the kernels' share of the time. Then check that the result is wrong without these kernels.

        These calls come last, because they may leave wrong values behind in the candidate.
        """
        config = self.task.config
        if self.task.device.type == "cuda" and config.profile:
            if self.needs_profile:
                self._measure_share()
            else:
                self.kernel_share, self.memory_bytes = 1.0, max(self._measured(Mode.WEIGHED)[0], 0)
        has_library = any(one.library_ops for one in self.checker.audits)
        for mode in (Mode.UNDONE, Mode.SPOILED, Mode.ABLATED) if has_library else (Mode.SPOILED, Mode.ABLATED):
            try:
                passes = self.checker.check(self._telling_family(), self.task.variants[0], mode)
            except Judged as judged:
                if judged.outcome in (Outcome.CRASHED, Outcome.TIMEOUT):
                    return  # its control flow depends on what its kernels compute, so they do compute something
                raise
            if passes and mode is not Mode.UNDONE:
                raise self._no_kernel("with its kernels switched off the output is the same, or nearly all of it")
            if passes and self.checker.undone:
                raise self._no_kernel("the output is the same if what its kernels wrote is replaced with their inputs")

    def kernel_facts(self) -> str:
        """Return the Runner's facts about the candidate's kernels."""
        return feedback.bounded(feedback.only_facts(self.link.text()), KERNEL_TEXT)

    def _is_rearranged(self, sample: Sample) -> bool:
        """Return whether the expected outputs consist only of numbers from the inputs and parameters, zeros and ones,
        as after a transposition. Then a kernel that only copies does the whole work."""
        module = self.task.reference.module
        state = [*module.parameters(), *module.buffers()]
        with torch.no_grad():
            for spec, expected in zip(self.task.variants[0].output_specs, sample.expected, strict=True):
                numbers = expected.flatten()
                places = torch.randint(len(numbers), (min(len(numbers), MAX_SEARCHED_ELEMENTS),), device=numbers.device)
                numbers = numbers[places].to(spec.torch_dtype)
                there = (numbers == 0) | (numbers == 1)
                for one in [*sample.tensors, *state]:
                    there |= torch.isin(numbers, one.flatten().to(spec.torch_dtype))
                if not there.all():
                    return False
        return True

    def _telling_family(self) -> str:
        """Return the family whose inputs show every kernel's work. Positive ones may not: a relu keeps them."""
        return "normal" if "normal" in self.task.families else "own"

    def _no_kernel(self, why: str, more: str = "") -> Judged:
        told = f"ModelNew must compute its result in {self.backend} kernels of its own: {why}.{more}"
        return Judged(Outcome.REJECTED, f"no kernel of its own: {why}", told)

    def _measured(self, mode: Mode) -> tuple[int, ...]:
        """Return the Runner's measurements of one call. They come from the candidate's process, so they are used only
        against the candidate. Other processes may time meanwhile."""
        variant = self.task.variants[0]
        slot = secrets.randbelow(variant.slots)
        with self.turns.shared() as turn:
            sample = self.task.sample(self._telling_family(), variant)
            turn.pause()
            self.checker.write(variant, slot, sample)
            free_memory(self.task.device)
        self.checker.ask_for_call(slot, 0, mode)
        frame = self.link.answer(Say.CALL)
        self.checker.refuse_status(frame)
        return frame.values

    def _measure_share(self) -> None:
        for _ in range(2):
            own, everything, records, peak = self._measured(Mode.PROFILED)[:4]
            self.memory_bytes = max(peak, 0)
            if records > 0 and 0 <= own <= everything and everything > 0:
                self.kernel_share = own / everything
                break
        else:
            raise self._no_kernel(feedback.UNRECORDED)
        if own == 0:
            raise self._no_kernel("none of the time on the device was spent in them")
        if self.task.config.allow:
            return  # _weigh_library has checked the share of the arithmetic that is not allowed to the library
        min_share = self.task.config.min_kernel_share
        if self.library_share is not None and self.library_share <= SMALL_LIBRARY_SHARE:
            min_share *= SMALL_TASK_FACTOR  # a launch takes a microsecond, whatever it computes
        if self.kernel_share < min_share:
            share, least = 100 * self.kernel_share, 100 * min_share
            raise self._no_kernel(f"only {share:.3g}% of the time on the device is spent in them, not {least:.3g}%")
