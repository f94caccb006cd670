"""One evaluation: the request to the Examiner about a candidate, and the verdict from its findings."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from kernel_coder.judge import feedback
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.language import NAMES, other_language
from kernel_coder.judge.runner import native
from kernel_coder.judge.sandbox.process import ProcessExit
from kernel_coder.judge.verdict import MAX_FEEDBACK, Outcome, OutputError, Verdict
from kernel_coder.judge.wire.limits import CANDIDATE_BYTES
from kernel_coder.judge.wire.requests import Found, PrepareTask
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import SOLUTION_CLASS, Task, parse

_TIMES = (
    "reference_compile_ms",
    *("speedup", "speedup_low", "speedup_high", "runtime_ms", "reference_ms"),
    *("runtimes_ms", "reference_runtimes_ms"),
)


class Evaluation:
    """One candidate that is being judged.

    Args:
        task: the task that the candidate solves.
        candidate: the candidate's source.
        backend: the language of the candidate.
        device: the device's name in the verdict. The Examiner reports it.
        config: the judge's configuration.
        versions: versions of the packages that could change the verdict. They become part of it.

    Attributes:
        is_interpreted: Triton's interpreter runs the candidate's kernels.
        device: the device's name in the verdict, which the Examiner reports.
        task_key: equal for candidates whose task is prepared in the same way.
        is_alone: no other candidate is being judged.
        is_trusted: the candidate is the task's own reference, so it is not the cause if the Examiner is lost.
        stage_s: seconds of the stages before the candidate runs: the task is prepared, the reference is timed without
            a candidate, and the candidate's process starts.
    """

    def __init__(
        self,
        task: Task,
        candidate: str,
        backend: str,
        *,
        device: str,
        config: JudgeConfig,
        versions: Mapping[str, str],
    ) -> None:
        self.task, self.candidate, self.backend, self.device = task, candidate, backend, device
        self.is_interpreted = device == "cpu" and backend == "triton"
        self.task_key = task.reference, task.entry_point, task.precision
        self._began = time.monotonic()
        self.is_alone = False
        self.is_trusted = False
        self.stage_s: dict[str, float] = {}
        self._examiner_device = "cpu" if device == "cpu" else "cuda:0"  # the Examiner sees one GPU only
        self._config = config.model_copy(update={"timing": False}) if self.is_interpreted else config
        self._versions = versions

    def restart_clock(self) -> None:
        """Restart the evaluation's clock, because a worker is now available."""
        self._began = time.monotonic()

    def request(self, lock: int | None) -> PrepareTask:
        """Return the request to prepare the task. `lock` is a descriptor of the GPU's lock file."""
        task, config = self.task, self._config
        return PrepareTask(
            task={
                "reference": task.reference,
                "entry_point": task.entry_point,
                "precision": task.precision,
                "families": task.metadata.get("input_families"),
            },
            config=config.model_dump(mode="json"),
            device=self._examiner_device,
            backend=self.backend,
            is_timed=config.timing and config.timed_calls > 0,
            lock=lock,
        )

    def verdict(
        self, outcome: Outcome, reason: str | None = None, told: str | None = None, compiled: bool = False, **found: Any
    ) -> Verdict:
        """Return a verdict on this candidate. The feedback is `told`, or the reason if `told` is None."""
        if outcome is Outcome.HARNESS_FAILED:
            told = ""
        text = reason if told is None else told
        return Verdict(
            outcome=outcome,
            compiled=compiled,
            reason=reason,
            feedback=feedback.bounded(text or "", MAX_FEEDBACK) if text else "",
            task=self.task.id,
            task_hash=sha256_text(self.task.reference),
            candidate_hash=sha256_text(self.candidate),
            backend=self.backend,
            device=self.device,
            interpreted=self.is_interpreted,
            versions=self._versions,
            **found,
        )

    def verdict_of(self, found: Found, process_exit: ProcessExit | None) -> Verdict:
        """Return the verdict that follows from the Examiner's findings. If the candidate's process ended too early,
        `process_exit` makes the reason more exact."""
        outcome = Outcome(found.outcome)
        reason, told = found.reason, found.feedback
        if outcome is Outcome.CRASHED and process_exit is not None:
            if process_exit.out_of_memory:
                outcome = Outcome.OUT_OF_MEMORY
            elif process_exit.ended_by == "wall_limit":
                outcome = Outcome.TIMEOUT
            reason = f"its process ended before it had answered: {process_exit.reason}"
            told = f"{'ModelNew' if found.compiled else 'The code'} ended its process ({process_exit.reason})."
        is_correct = outcome is Outcome.CORRECT
        if is_correct:
            told = feedback.success(**{name: getattr(found, name) for name in feedback.SUCCESS_FIELDS})
        return self.verdict(
            outcome,
            reason,
            told,
            found.compiled,
            errors=tuple(OutputError(**error) for error in found.errors),
            seeds=tuple(found.seeds),
            stage_s={**self.stage_s, **found.stage_s, "all": time.monotonic() - self._began},
            kernel_share=found.kernel_share,
            library_share=found.library_share,
            specialised=found.specialised,
            deterministic=found.deterministic,
            aliases_input=found.aliases_input,
            reuses_output=found.reuses_output,
            memory_bytes=found.memory_bytes,
            reference_memory_bytes=found.reference_memory_bytes,
            roofline_share=found.roofline_share,
            clock_note=found.clock_note,
            kernels=found.kernels if is_correct else "",
            **({name: getattr(found, name) for name in _TIMES} if is_correct else {}),
        )


def format_problem(candidate: str, backend: str) -> tuple[Outcome, str] | None:
    """Return what is wrong with a candidate's source as far as the text shows it; None if nothing is."""
    if not candidate.strip():
        return Outcome.FORMAT_ERROR, "the answer has no code"
    if (size := len(json.dumps(candidate))) > CANDIDATE_BYTES:
        reason = f"the code is too long: {size} bytes as JSON, and at most {CANDIDATE_BYTES} are judged"
        return Outcome.FORMAT_ERROR, reason
    if native.is_native(candidate, backend):
        problem = native.problem_of(candidate)
        return None if problem is None else (Outcome.FORMAT_ERROR, problem)
    tree = parse(candidate)
    if isinstance(tree, str):
        other = other_language(candidate, backend)
        looks = "" if other is None else f"; it looks like {NAMES[other]}, and {NAMES[backend]} is asked for"
        return Outcome.COMPILE_ERROR, f"the code does not parse: {tree}{looks}"
    if SOLUTION_CLASS not in candidate:
        return Outcome.FORMAT_ERROR, f"the code defines no class {SOLUTION_CLASS}"
    return None


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that could change a verdict."""
    found = {"python": sys.version.split()[0]}
    for name in ("kernel-coder", "torch", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
