"""Verifiers decide whether a candidate is correct: with Triton's interpreter, or with the judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Protocol

from kernel_coder.data.workers import Workers
from kernel_coder.interpreter import require_interpreter
from kernel_coder.tasks.task import SOLUTION_CLASS, Task


@dataclass(frozen=True, slots=True)
class Candidate:
    """A solution to verify.

    Attributes:
        task: its task.
        code: its source.
        with_nan: also check that NaNs in the inputs give the reference's NaNs (interpreter only).
        with_other_inputs: also check that the module's results depend on its inputs (the judge always does).
        as_constructed: leave the modules in training mode (interpreter only; the judge always does).
    """

    task: Task
    code: str
    with_nan: bool = False
    with_other_inputs: bool = False
    as_constructed: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A verifier's result. ``correct`` is None if the verifier itself failed; ``reason`` explains False and None."""

    correct: bool | None
    reason: str | None = None
    error: float | None = None


class Verifier(AbstractContextManager["Verifier"], Protocol):
    """Yields a finding for each candidate, in order and lazily."""

    name: str

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]: ...


class InterpreterVerifier:
    """Compares reference and candidate in Triton's interpreter with the reference in fp64. The code must be trusted.

    Raises ValueError if the interpreter does not work with the installed packages.
    """

    name = "interpreter"

    def __init__(self, workers: int = 2, timeout_s: float = 60.0) -> None:
        require_interpreter()
        self._workers = Workers(workers, interpret=True, timeout_s=timeout_s)

    def __enter__(self) -> InterpreterVerifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._workers.close()

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]:
        jobs = (
            {
                "kind": "check",
                "entry_point": each.task.entry_point,
                "new_name": SOLUTION_CLASS,
                "reference": each.task.reference,
                "candidate": each.code,
                "with_nan": each.with_nan,
                "with_other_inputs": each.with_other_inputs,
                "evaluation": not each.as_constructed,
            }
            for each in candidates
        )
        for result in self._workers.map(jobs):
            reason = result.get("failure") or result.get("reason")
            yield Finding(reason is None, reason, result.get("error"))


class NotRun:
    """Accepts every candidate and runs none. It is for generated pairs that are checked on a GPU afterwards."""

    name = "not run"

    def __enter__(self) -> NotRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]:
        """Yield that each candidate is correct."""
        for _ in candidates:
            yield Finding(True)


class OncePerSolution:
    """Verifies each distinct solution once, with another verifier; later candidates of the same code get its finding.

    This is for a generator whose solutions contain no sizes, so that many tasks share a solution. It does not detect a
    wrong module of a later task: check those on a GPU, which takes milliseconds (``benchmarks/training/kernelbench``).
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._known: dict[str, Finding] = {}
        self.name = f"{verifier.name}, once per solution"

    def __enter__(self) -> OncePerSolution:
        self._verifier.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._verifier.__exit__(kind, error, at)

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]:
        stream = iter(candidates)
        while batch := list(islice(stream, 64)):
            new = {each.code: each for each in batch if each.code not in self._known}
            for code, finding in zip(new, self._verifier.verify(new.values()), strict=True):
                self._known[code] = finding
            yield from (self._known[each.code] for each in batch)


class JudgeVerifier:
    """Verifies with the judge, which has a sandbox, hidden inputs and shapes, and its own tolerance.

    Args:
        device: the judge's device.
        workers: number of candidates judged at once.
        options: fields of :class:`kernel_coder.judge.JudgeConfig`; by default nothing is timed, and products may be the
            library's, as in Inductor's solutions.
    """

    name = "judge"

    def __init__(self, device: str = "cpu", workers: int = 2, **options: Any) -> None:
        from kernel_coder.judge.config import JudgeConfig
        from kernel_coder.judge.supervisor.open import open_judge

        config = JudgeConfig(**{"workers": workers, "timing": False, "allow": ["library_matmul"], **options})
        self._judge: Any = open_judge(device, "triton", config=config)

    def __enter__(self) -> JudgeVerifier:
        self._judge.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._judge.__exit__(kind, error, at)

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]:
        for verdict in self._judge.evaluate_many((each.task, each.code) for each in candidates):
            if verdict.outcome == "harness_failed":
                yield Finding(None, verdict.reason)
            else:
                yield Finding(verdict.correct, None if verdict.correct else f"{verdict.outcome}: {verdict.reason}")
