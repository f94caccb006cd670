"""One candidate's examination: what its Runner is asked, and in which order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kernel_coder.judge import feedback
from kernel_coder.judge.examiner.checks import Checker, failure
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.proof import WorkProof
from kernel_coder.judge.examiner.task_memory import Variant
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.gpu.turns import GpuTurns
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.messages import Loaded, Mode, Say, Status

CHECKS_AGAIN = 2
"""Checks after the timed calls, on inputs of other kinds than the task's own. A candidate that counts its calls knows
when the first checks are over."""

STARTING_S = 2.0
"""Seconds that timing waits at most until the next candidate's process has made its GPU context, which would disturb
it."""


class Examination:
    """Everything that is asked of one candidate."""

    def __init__(
        self,
        task: PreparedTask,
        link: Link,
        reference: Link | None,
        backend: str,
        source: str,
        end_candidate: Callable[[], None],
        turns: GpuTurns,
        starting: int | None = None,
    ) -> None:
        """
        Args:
            task: what the candidate has to compute.
            link: to its Runner.
            reference: to the reference's own Runner; None: nothing is timed.
            backend: language of its kernels.
            source: its code.
            end_candidate: ends the candidate's processes, and returns when none is left.
            turns: on the device.
            starting: a pipe that is closed once the next candidate's process has made its GPU context.
        """
        self.task, self.link, self.reference, self.turns = task, link, reference, turns
        self.config = task.config
        self.end_candidate, self.starting = end_candidate, starting
        self.checker = Checker(task, link, source, turns)
        self.proof = WorkProof(self.checker, backend)
        self.is_proved = backend != "torch" and self.config.ablation
        self.compiled = False
        self.stage_s: dict[str, float] = {}
        self.timing: dict[str, Any] = {}

    def run(self) -> None:
        """Examine the candidate. It is correct if this returns.

        Raises:
            Judged: it is not.
        """
        waited_s = self.turns.waited_s
        try:
            self._examine()
        finally:
            if self.turns.lock is not None:
                self.stage_s["wait"] = self.turns.waited_s - waited_s

    def _examine(self) -> None:
        """The sequence. A candidate does not know which of the first calls is the audited one."""
        with self._stage("build"):
            self._take_built()
        checks = self._first_checks()
        audit_at = 1 + secrets.randbelow(len(checks)) if self.is_proved else len(checks)
        with self._stage("check"):
            for family, variant in checks[:audit_at]:
                self.checker.check(family, variant)
        if self.is_proved:
            with self._stage("proof"):
                self.proof.audit()
        with self._stage("check"):
            for family, variant in checks[audit_at:]:
                self.checker.check(family, variant)
            if self.checker.nulls is not None:
                self.checker.nulls.refuse()
        timer: Timer | None = None
        if self.reference is not None and self.config.timing and self.config.timed_calls:
            with self._stage("time"):
                timer = self._time(self.reference)
        with self._stage("check"):
            self._check_again()
        if self.is_proved:
            with self._stage("proof"):
                self.proof.prove()
        if timer is not None:
            if timer.needs_reference_alone or self.config.compile_baseline:
                with self._stage("alone"):
                    self.end_candidate()
                    timer.measure_afterwards()
            self.timing = timer.findings()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.stage_s[name] = self.stage_s.get(name, 0.0) + time.monotonic() - started

    # ---- stages

    def _take_built(self) -> None:
        """Wait until the candidate is built and has the reference's parameters."""
        frame = self.link.answer(Say.BUILT)
        status = Status(frame.status)
        if status is Status.OK:
            self.compiled = True
            if frame.values[0] == Loaded.BY_SEED:
                if not self.task.reference.has_random_state:
                    raise Judged(Outcome.REJECTED, "it claims a state that it cannot have")
                self.task.reference.use_initial_state()
            return
        text = self.link.text()
        if status is Status.NO_MODEL:
            raise Judged(Outcome.FORMAT_ERROR, "the code defines no class ModelNew", compiled=False)
        if status is Status.OUT_OF_MEMORY:
            raise Judged(Outcome.OUT_OF_MEMORY, "it ran out of memory while it was built", compiled=False)
        if status is Status.NO_STATE:
            state = self.task.memory.state_specs[:20]
            wanted = ", ".join(f"{name} {list(spec.shape)}" for name, spec in state)
            reason = "the reference's parameters cannot be loaded into it"
            told = f"{reason}: ModelNew must hold them under the same names, or with the same shapes in the same order."
            told += f"\nThe reference has: {wanted}.\nModelNew has: {feedback.harmless(text).strip() or 'none'}."
            self.compiled = True
            raise Judged(Outcome.WRONG_OUTPUT, reason, feedback.bounded(told))
        raise failure(Outcome.COMPILE_ERROR, text, self.checker.source, compiled=False)

    def _first_checks(self) -> list[tuple[str, Variant]]:
        """Family and sizes of each check before the timed calls."""
        plain, *hidden = self.task.variants
        families = self.task.families
        wanted = [(families[i % len(families)], plain) for i in range(self.config.checks)]
        return [*wanted[:1], *(("own", variant) for variant in hidden), *wanted[1:]]

    def _check_again(self) -> None:
        others = [family for family in self.task.families if family != "own"] or ["own"]
        for _ in range(min(CHECKS_AGAIN, self.config.checks - 1)):
            family = others.pop(secrets.randbelow(len(others))) if others else "own"
            self.checker.check(family, self.task.variants[0])

    def _time(self, reference: Link) -> Timer:
        if self.starting is not None:
            self.turns.await_closed(self.starting, STARTING_S)
        timer = Timer(self.checker, reference)
        assert self.task.known.baseline is not None
        timer.measure(self.task.known.baseline)
        return timer

    # ---- another examination: kernels that were interpreted

    def compile_for_target(self) -> None:
        """Have the kernels of a candidate that is correct in Triton's interpreter compiled for another architecture.

        Raises:
            Judged: they do not compile. An error that the interpreter did not raise counts as a compile error, too.
        """
        try:
            self._take_built()
            self.checker.ask_for_call(0, 0, Mode.FOR_TARGET)
            if self.link.answer(Say.CALL).status != Status.OK:
                raise failure(Outcome.COMPILE_ERROR, self.link.text(), self.checker.source, compiled=False)
        except Judged as judged:
            if judged.outcome in (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.CRASHED):
                raise
            where = f"it does not compile for {self.config.compile_for}"
            told = f"Triton's interpreter ran it, but {where}:\n{judged.feedback}"
            reason = f"{where}: {judged.reason}"
            raise Judged(Outcome.COMPILE_ERROR, reason, feedback.bounded(told), compiled=False) from None
        self.proof.kernels = self.proof.kernel_facts()

    @property
    def kernels(self) -> str:
        """What is known of the candidate's own kernels, as text."""
        return self.proof.kernels

    def findings(self) -> dict[str, Any]:
        """Fields of the verdict."""
        return {
            "errors": list(self.checker.errors.values()),
            "stage_s": self.stage_s,
            "kernel_share": self.proof.kernel_share,
            "kernels": self.kernels,
            "compiled": self.compiled,
            **self.timing,
        }
