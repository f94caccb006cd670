"""What decides whether a candidate is right: an interface, the interpreter's check, and the judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from kernel_coder.data.workers import Workers
from kernel_coder.interpreter import require_interpreter
from kernel_coder.tasks.task import SOLUTION_CLASS, Task


@dataclass(frozen=True, slots=True)
class Candidate:
    """A solution to be verified.

    Attributes:
        with_nan: it must also keep NaNs in their places, where that is checked.
        with_other_inputs: the module must give something else for other inputs; the judge asks that of every module.
    """

    task: Task
    code: str
    with_nan: bool = False
    with_other_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """`correct` is None where the verifier itself failed: nothing is known. `reason` says why it is not True."""

    correct: bool | None
    reason: str | None = None
    error: float | None = None


class Verifier(AbstractContextManager["Verifier"], Protocol):
    """Findings for candidates: one each, in order, lazily."""

    name: str

    def verify(self, candidates: Iterable[Candidate]) -> Iterator[Finding]: ...


class InterpreterVerifier:
    """Runs reference and candidate in Triton's interpreter, against the reference in fp64. The code must be trusted.

    ValueError where the interpreter cannot work.
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
            }
            for each in candidates
        )
        for result in self._workers.map(jobs):
            reason = result.get("failure") or result.get("reason")
            yield Finding(reason is None, reason, result.get("error"))


class JudgeVerifier:
    """The judge: its sandbox, its hidden inputs and shapes, its tolerance.

    Args:
        options: of :class:`kernel_coder.judge.JudgeConfig`; a speedup is not measured unless `timing` asks for it.
    """

    name = "judge"

    def __init__(self, device: str = "cpu", workers: int = 2, **options: Any) -> None:
        from kernel_coder.judge.config import JudgeConfig
        from kernel_coder.judge.supervisor.pool import open_judge

        config = JudgeConfig(**{"workers": workers, "timing": False, **options})
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
