"""The examination of one candidate: the requests to its Runner and their order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kernel_coder.judge import feedback
from kernel_coder.judge.examiner.checks import Checker, failure
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.proof import WorkProof
from kernel_coder.judge.examiner.source_checks import reach_reason
from kernel_coder.judge.examiner.task_memory import Variant
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.gpu.turns import GpuTurns, synchronise
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.messages import Loaded, Mode, Say, Status, TensorSpec

CHECKS_AGAIN = 2
"""Number of checks after the timed calls, each on inputs of another family than the task's own, or of both. A candidate
that counts its calls knows when the first checks are over."""

SECOND_BYTES = 1 << 30
"""Upper limit of the parameters' size, in bytes, at which a second instance of the candidate is made. With larger
parameters only the first instance is checked with other ones."""

ONE_BY_ONE = 2
"""Number of checks on inputs of the task's own sizes that have a request of their own: the first call, which compiles,
and one that is observed by itself. The others share requests, which saves waits for the device."""

CALLS_TOGETHER = 5
"""Upper limit of the families that share a request. While the candidate answers it, no other candidate is timed, so
the request must be short."""

AT_OTHER_SIZES = ("offset", "negative")
"""Families that are checked at other sizes than the task's own, too. A wrong value in a block's padding often shows
only at such sizes, and only among numbers of one sign, or far from zero."""

IN_OTHER_MODES = ("huge", "structured", "own")
"""The first of these families that the task has is checked in other modes too: with gradients on, or off where they are
compared, and in eval mode. A candidate knows the mode, so it could be careless with large values only there."""

NO_PARAMETERS = frozenset({Status.NO_STATE, Status.NO_GRADIENT})
"""Statuses of a candidate that was built, but cannot take the reference's parameters."""

STARTING_S = 2.0
"""Upper limit of the wait, in seconds, before timing until the next candidate's process has created its CUDA context.
That creation would disturb the times."""


def not_built(status: Status, text: str, state: Sequence[tuple[str, TensorSpec]], source: str) -> Judged:
    """Return the exception for a candidate that cannot be called.

    Args:
        status: why, according to its Runner.
        text: the Runner's message.
        state: name and place of each parameter and buffer of the reference.
        source: the candidate's source.
    """
    if status is Status.NO_MODEL:
        return Judged(Outcome.FORMAT_ERROR, "the code defines no class ModelNew", compiled=False)
    if status is Status.OUT_OF_MEMORY:
        return Judged(Outcome.OUT_OF_MEMORY, "it ran out of memory while it was built", compiled=False)
    if status not in NO_PARAMETERS:
        return failure(Outcome.COMPILE_ERROR, text, source, compiled=False)
    own = feedback.harmless(text).strip() or "none"
    if status is Status.NO_STATE:
        reason = "the reference's parameters cannot be loaded into it"
        needed = "ModelNew must hold them under the same names, or with the same shapes in the same order."
        wanted = ", ".join(f"{name} {list(spec.shape)}" for name, spec in state[:20])
        told = f"The reference has: {wanted}.\nModelNew has: {own}."
    else:
        reason = "the gradient of a parameter is compared, and ModelNew has no such parameter"
        needed = "ModelNew must have each of the reference's parameters as a parameter that requires a gradient, under "
        needed += "the same name, or with the same shape in the same order."
        told = f"{own}."
    return Judged(Outcome.WRONG_OUTPUT, reason, feedback.bounded(f"{reason}: {needed}\n{told}"))


class Examination:
    """The examination of one candidate."""

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
            task: the task that the candidate solves.
            link: the link to the candidate's Runner.
            reference: the link to the reference's own Runner; None: nothing is timed.
            backend: the language of the candidate's kernels.
            source: the candidate's source.
            end_candidate: kills the candidate's processes and returns when all have ended.
            turns: turns on the device.
            starting: a pipe whose other end is closed once the next candidate's process has created its CUDA context.
        """
        self.task, self.link, self.reference, self.turns = task, link, reference, turns
        self.config = task.config
        self.end_candidate, self.starting = end_candidate, starting
        self.checker = Checker(task, link, source, turns)
        self.proof = WorkProof(self.checker, backend)
        self.rng = random.Random(task.draws.seeds.next())
        """Draws the order of the checks. The order is secret; equal seeds give the same order."""

        self.is_proved = backend != "torch" and self.config.ablation
        self.compiled = False
        self.stage_s: dict[str, float] = {}
        self.timing: dict[str, Any] = {}

    def run(self) -> None:
        """Examine the candidate. The candidate is correct if this returns.

        Raises:
            Judged: the candidate is not correct.
        """
        waited_s = self.turns.waited_s
        try:
            self._examine()
        finally:
            if self.turns.lock is not None:
                self.stage_s["wait"] = self.turns.waited_s - waited_s

    def _examine(self) -> None:
        """Run all stages in order."""
        with self._stage("build"):
            self._take_built()
        self.checker.is_audited = self.is_proved
        with self._stage("check"):
            others = self._families()[ONE_BY_ONE:]
            self.rng.shuffle(others)
            self.checker.families_ahead = list(others)
            for family, variant in self._first_checks():
                self.checker.check(family, variant)
            self._check_together(others)
            self._check_other_sizes()
            self._check_other_modes()
            if self.checker.nulls is not None:
                self.checker.nulls.refuse()
        if self.is_proved:
            with self._stage("proof"):
                self.proof.audit()
        timer: Timer | None = None
        if self.reference is not None and self.config.timing and self.config.timed_calls:
            with self._stage("time"):
                timer = self._time(self.reference)
        with self._stage("check"):
            self._check_again()
        with self._stage("again"):
            self.checker.check_near_ones_again()
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
        """Wait until the candidate is built and has loaded the reference's parameters."""
        frame = self.link.answer(Say.BUILT)
        status = Status(frame.status)
        if status is Status.OK:
            self.compiled = True
            self.checker.loaded = Loaded(min(max(frame.values[0], 0), max(Loaded)))
            if frame.values[0] == Loaded.BY_SEED:
                if not self.task.reference.has_random_state:
                    raise Judged(Outcome.REJECTED, "it claims parameters drawn by seed, but the reference's are not")
                self.task.reference.use_initial_state()
            return
        self.compiled = status in NO_PARAMETERS
        raise not_built(status, self.link.text(), self.task.memory.state_specs, self.checker.source)

    def _first_checks(self) -> list[tuple[str, Variant]]:
        """Return family and sizes of each check that has a request of its own. The very first call may have other
        sizes: what a candidate keeps from it may be wrong for the next one."""
        plain, *hidden = self.task.variants
        wanted = [(family, plain) for family in self._families()[:ONE_BY_ONE]]
        others = [("own", variant) for variant in hidden]
        first = 1 if self.config.checks > 1 and self.rng.random() < 0.5 else 0
        return [*others[:first], *wanted[:1], *others[first:], *wanted[1:]]

    def _families(self) -> list[str]:
        """Return the family of each check before the timed calls: every family, or more checks if they are wanted."""
        families, checks = self.task.families, self.config.checks
        return [families[i % len(families)] for i in range(1 if checks == 1 else max(checks, len(families)))]

    def _check_together(self, families: list[str]) -> None:
        """Check families on inputs of the task's own sizes, several in a request. The first of these calls is repeated,
        to see whether its result has the same bits."""
        plain = self.task.variants[0]
        most = min(max(plain.slots - 1, 1), CALLS_TOGETHER)
        for start in range(0, len(families), most):
            self.checker.check_all(families[start : start + most], plain, repeats=start == 0)

    def _check_other_sizes(self) -> None:
        """Check the families of :data:`AT_OTHER_SIZES` on inputs of other sizes. The last variant is larger in every
        dimension, if the task allows that, while a smaller one may differ in its rows alone."""
        families = [family for family in AT_OTHER_SIZES if family in self.task.families and self.config.checks > 1]
        for variant in self.task.variants[1:][-1:]:
            for start in range(0, len(families), variant.slots):
                self.checker.check_all(families[start : start + variant.slots], variant)

    def _check_other_modes(self) -> None:
        """Check calls with gradients on, or off if they are compared, and in eval mode if the task's module is in
        training mode. Users make all of them."""
        plain, has_gradients = self.task.variants[0], self.config.backward
        if self.config.checks == 1:
            return
        family = next(family for family in IN_OTHER_MODES if family in self.task.families)
        with self.checker.saying(f"With gradients {'off' if has_gradients else 'on'}: "):
            self.checker.check(family, plain, Mode.INFERENCE if has_gradients else Mode.GRADIENTS)
        if self.config.training is not None or self.checker.loaded is Loaded.BY_SEED or not self.task.has_eval_mode():
            return
        with self.task.reference.in_eval_mode():
            self._write_state()
            self._ask(Say.RELOAD, 0, 0)
            self._ask(Say.TRAINING, 0)
            with self.checker.saying("In eval mode: "):
                self.checker.check(family, plain)
            self._ask(Say.TRAINING, 2)

    def _ask(self, say: Say, *values: int) -> Status:
        self.link.ask(say, *values)
        frame = self.link.answer(say)
        if Status(frame.status) not in NO_PARAMETERS:
            self.checker.refuse_status(frame)
        return Status(frame.status)

    def _check_again(self) -> None:
        """Check again after the timed calls: the first instance and a second one, both with other parameters.

        Each is checked on the task's own inputs too. On large ones an old bias, for example, would hardly matter.
        """
        others = [family for family in self.task.families if family != "own"]
        reloads = self._reloads() if self.config.checks > 1 else []
        plain = self.task.variants[0]
        for place in range(min(CHECKS_AGAIN, max(self.config.checks - 1, 0))):
            if place < len(reloads):
                self._reload(*reloads[place])
            families = [others.pop(self.rng.randrange(len(others)))] if others else []
            if place < len(reloads) or not families:
                families.append("own")
            for start in range(0, len(families), plain.slots):
                self.checker.check_all(families[start : start + plain.slots], plain)

    def _reloads(self) -> list[tuple[bool, bool]]:
        """Return, for each time that an instance gets other parameters, whether it is a new instance, and whether only
        some elements of the parameters change.

        The first instance comes first: a copy of its weights that it recognises by their address or by some elements is
        out of date then.
        """
        if self.checker.loaded is Loaded.NOTHING:
            return []
        if self.checker.loaded is Loaded.BY_SEED:
            return [(True, False)]
        is_small = sum(spec.nbytes for _, spec in self.task.memory.state_specs) <= SECOND_BYTES
        return [(False, True), (True, False)] if is_small else [(False, False)]

    def _write_state(self) -> None:
        """Write the reference's current parameters and buffers to shared memory."""
        with self.turns.shared():
            self.task.memory.write_state()
            synchronise(self.task.device)

    def _reload(self, is_new: bool, is_partial: bool) -> None:
        """Give other parameters to a new instance or to the first one."""
        reference, seed = self.task.reference, self.task.draws.seeds.next() if is_new else 0
        if self.checker.loaded is Loaded.BY_SEED:
            reference.use_initial_state(seed)
        else:
            with self.turns.shared():
                reference.draw_some() if is_partial else reference.draw_state(with_other_integers=True)
            self._write_state()
        if self._ask(Say.RELOAD, int(is_new), seed) in NO_PARAMETERS:
            raise Judged(Outcome.WRONG_OUTPUT, "a second instance of it has other parameters than the first one")
        self.checker.when = "With other parameters: "

    def _time(self, reference: Link) -> Timer:
        if self.starting is not None:
            self.turns.await_closed(self.starting, STARTING_S)
        timer = Timer(self.checker, reference)
        assert self.task.known.baseline is not None
        timer.measure(self.task.known.baseline)
        return timer

    # ---- another examination: kernels that were interpreted

    def compile_for_target(self) -> None:
        """Compile the kernels of a candidate that was correct in Triton's interpreter for another architecture.

        Raises:
            Judged: the kernels do not compile. An error that the interpreter did not raise counts as a compile error.
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
        """Facts about the candidate's own kernels, as text."""
        return self.proof.kernels

    def _roofline_share(self) -> float | None:
        """Return the GPU's shortest time for the task's bytes and products, over the candidate's time of a call."""
        runtime_ms = self.timing.get("runtime_ms")
        floor_s = self.task.floor_s() if runtime_ms else None
        return min(1e3 * floor_s / runtime_ms, 1.0) if floor_s and runtime_ms else None

    def findings(self) -> dict[str, Any]:
        """Return fields of the verdict."""
        return {
            "errors": list(self.checker.errors.values()),
            "stage_s": self.stage_s,
            "kernel_share": self.proof.kernel_share,
            "library_share": self.proof.library_share,
            "specialised": self.checker.specialised,
            "deterministic": self.checker.is_deterministic,
            "aliases_input": self.proof.has_aliases,
            "reuses_output": self.proof.reuses_output,
            "memory_bytes": self.proof.memory_bytes,
            "reference_memory_bytes": self.task.reference_memory_bytes() if self.timing else None,
            "roofline_share": self._roofline_share(),
            "clock_note": reach_reason(self.checker.source) if self.timing else None,
            "kernels": self.kernels,
            "compiled": self.compiled,
            **self.timing,
        }
