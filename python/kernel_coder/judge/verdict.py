"""The verdict: what the judge found about one candidate."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any, TypeVar

REFUSED = "the task is refused: "
"""Beginning of a verdict's reason if no candidate can be judged on its task. The outcome is then ``harness_failed``."""

PROTOCOL = 2
"""Version of the rules for judging. It is raised when the same candidate may get another verdict. Since version 2, only
kernels of the candidate's backend count as its own."""

MAX_FEEDBACK = 4000
"""Upper limit of a verdict's feedback, in characters: about a thousand tokens."""


class Outcome(StrEnum):
    """How judging ended.

    All outcomes but the last are the candidate's fault or merit. ``harness_failed`` says nothing about it.
    """

    CORRECT = "correct"
    FORMAT_ERROR = "format_error"
    """The answer has no code, or the code defines no ``ModelNew``."""
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    """It raised an exception, or a kernel could not be launched or failed."""
    WRONG_OUTPUT = "wrong_output"
    """It ran, and an output has the wrong values, shape or dtype."""
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    """Its process died."""
    REJECTED = "rejected"
    """It broke the rules: no kernel of its own, a time that is physically impossible, or an attack on the judge."""
    HARNESS_FAILED = "harness_failed"
    """The judge itself failed. The candidate gets no reward, which is not the same as a reward of 0."""


ALWAYS_COMPILED = frozenset({Outcome.CORRECT, Outcome.WRONG_OUTPUT, Outcome.RUNTIME_ERROR})
NEVER_COMPILED = frozenset({Outcome.FORMAT_ERROR, Outcome.COMPILE_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """The error of one output against the float64 reference: the worst one of all checks.

    :func:`kernel_coder.ops.compare` defines the errors.

    Attributes:
        name: the name of the output: ``output``, ``output 1`` or ``output['loss']``.
        elements: number of its elements.
        mismatches: number of elements outside the tolerance.
        max_abs_error: largest absolute error; infinite if an element is NaN and should not be.
        max_rel_error: largest relative error; likewise.
        relative_error: norm of the error over norm of the expected output.
        reference_error: relative error of the reference in the task's own precision, from which the tolerance follows;
            None if it was not measured.
    """

    name: str
    elements: int
    mismatches: int
    max_abs_error: float
    max_rel_error: float
    relative_error: float
    reference_error: float | None = None

    def __post_init__(self) -> None:
        _fit_fields(self)
        for name in ("elements", "mismatches", "max_abs_error", "max_rel_error", "relative_error", "reference_error"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} of {self.name} must be at least 0; got {value}")
        if self.mismatches > self.elements:
            raise ValueError(f"{self.name} cannot have {self.mismatches} mismatches among {self.elements} elements")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the judge found about one candidate, with all that is needed to repeat the verdict.

    Attributes:
        outcome: how judging ended.
        compiled: whether the candidate's module was built, with all kernels. Never true of a format or compile error.
            Always true if a call gave an output or an exception.
        correct: the same as ``outcome is Outcome.CORRECT``.
        reason: what failed, exactly and in one line: which output, element, dtype, shape or check. None if and only if
            the candidate is correct.
        feedback: the text for the model, at most :data:`MAX_FEEDBACK` characters.
        speedup: reference time over candidate time, the median of paired measurements. Only correct candidates have
            one. None if nothing was timed; interpreted kernels never are.
        speedup_low: lower bound of its confidence interval.
        speedup_high: upper bound of its confidence interval.
        runtime_ms: the candidate's median time of a call in milliseconds, on a GPU the device's time; None if it was
            not timed.
        reference_ms: the same of the reference in eager mode.
        reference_compile_ms: the same of the reference under ``torch.compile``.
        kernel_share: share of a call's device time that is spent in the candidate's own kernels, 0 to 1; None if it was
            not measured.
        library_share: share of the reference's arithmetic that torch's operators do in a call of the candidate, not
            counting products and convolutions where the library may compute these. None if it was not measured.
        specialised: how the candidate failed on other sizes than the task's own, on which it is right; None if it did
            not, or no other sizes were checked.
        deterministic: whether two calls on the same inputs gave the same bits; None if this was not tried.
        aliases_input: whether an output shares memory with an input, according to the candidate's process; None if it
            was not observed.
        reuses_output: whether a call overwrites the previous call's output, according to the candidate's process; None
            if it was not observed.
        memory_bytes: GPU memory that a call allocates, according to the candidate's process.
        reference_memory_bytes: the same for the reference, measured by the judge. Both are None without a GPU.
        roofline_share: the shortest time in which the GPU can do the task's memory transfers and products, over
            ``runtime_ms``. None without a time, or for a GPU whose rates are not known.
        clock_note: why nothing was subtracted from the candidate's time in the lower bound; None if something was, or
            nothing was timed.
        kernels: facts from compilers about a correct candidate's own kernels, one line for each: registers, spills,
            shared memory. They come from the candidate's process, so rewards must not depend on them.
        errors: the errors of each output that was compared.
        task: the task's id.
        task_hash: SHA-256 of the reference's source.
        candidate_hash: SHA-256 of the candidate's source.
        backend: the language that the candidate is written in.
        device: the device that it ran on, such as ``cpu`` or ``NVIDIA H200``.
        interpreted: whether Triton's interpreter ran the kernels, and not a device.
        seeds: seeds of the inputs. They were secret until the verdict.
        runtimes_ms: all times from which ``runtime_ms`` is computed, in order.
        reference_runtimes_ms: the same for ``reference_ms``. Both were measured in turn.
        stage_s: seconds that each stage of judging took.
        versions: versions of everything that could change the verdict: ``{"torch": "2.13.0", ...}``.
        protocol: the judge's :data:`PROTOCOL`.

    Raises:
        ValueError: fields contradict each other or make no sense. The message says which.
        TypeError: a field has the wrong type.

    >>> hashes = {"task_hash": "0" * 64, "candidate_hash": "f" * 64}
    >>> verdict = Verdict(outcome=Outcome.TIMEOUT, compiled=True, reason="no result after 10 s", task="level1/1_Square",
    ...                   backend="triton", device="cpu", interpreted=True, **hashes)
    >>> verdict.correct, verdict.is_scored, Verdict.from_json(verdict.to_json()) == verdict
    (False, True, True)
    """

    outcome: Outcome
    compiled: bool
    correct: bool = field(init=False)
    reason: str | None = None
    feedback: str = ""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    runtime_ms: float | None = None
    reference_ms: float | None = None
    reference_compile_ms: float | None = None
    kernel_share: float | None = None
    library_share: float | None = None
    specialised: str | None = None
    deterministic: bool | None = None
    aliases_input: bool | None = None
    reuses_output: bool | None = None
    memory_bytes: int | None = None
    reference_memory_bytes: int | None = None
    roofline_share: float | None = None
    clock_note: str | None = None
    kernels: str = ""
    errors: tuple[OutputError, ...] = ()
    task: str
    task_hash: str
    candidate_hash: str
    backend: str
    device: str
    interpreted: bool = False
    seeds: tuple[int, ...] = ()
    runtimes_ms: tuple[float, ...] = ()
    reference_runtimes_ms: tuple[float, ...] = ()
    stage_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        object.__setattr__(self, "correct", self.outcome is Outcome.CORRECT)
        _fit_fields(self)
        self._check_outcome()
        self._check_times()
        for name in ("kernel_share", "library_share", "roofline_share"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} must be between 0 and 1; got {share}")
        for name in ("feedback", "kernels"):
            if len(getattr(self, name)) > MAX_FEEDBACK:
                raise ValueError(f"{name} must have at most {MAX_FEEDBACK} characters; got {len(getattr(self, name))}")
        for name in ("task_hash", "candidate_hash"):
            value = getattr(self, name)
            if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
                raise ValueError(f"{name} must be a SHA-256 in lower-case hexadecimal; got {value!r}")
        if not 1 <= self.protocol <= PROTOCOL:
            raise ValueError(f"protocol must be between 1 and {PROTOCOL}, the newest known here; got {self.protocol}")

    def _check_outcome(self) -> None:
        if self.correct and self.reason is not None:
            raise ValueError(f"a correct verdict has no reason; got {self.reason!r}")
        if not self.correct and not (self.reason and self.reason.strip()):
            raise ValueError(f"a verdict of {self.outcome} needs a reason; got {self.reason!r}")
        if self.outcome in ALWAYS_COMPILED and not self.compiled:
            raise ValueError(f"a verdict of {self.outcome} is about a candidate that compiled; got compiled=False")
        if self.outcome in NEVER_COMPILED and self.compiled:
            raise ValueError(
                f"a verdict of {self.outcome} is about a candidate that did not compile; got compiled=True"
            )
        if self.correct and any(error.mismatches for error in self.errors):
            raise ValueError("a correct verdict has no output with mismatches")

    def _check_times(self) -> None:
        times = {name: getattr(self, name) for name in ("runtime_ms", "reference_ms", "reference_compile_ms")}
        speedups = {name: getattr(self, name) for name in ("speedup", "speedup_low", "speedup_high")}
        for name, value in {**speedups, **times}.items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite; got {value}")
        for name in ("runtimes_ms", "reference_runtimes_ms"):
            if not all(0 < value < math.inf for value in getattr(self, name)):
                raise ValueError(f"{name} must be positive and finite")
        for stage, value in self.stage_s.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"stage_s must be finite and at least 0; got {value} for {stage}")
        if self.speedup is None:
            if self.speedup_low is not None or self.speedup_high is not None:
                raise ValueError("bounds of a speedup need a speedup; got none")
            return
        if not self.correct:
            raise ValueError(f"only a correct verdict has a speedup; got {self.speedup} with {self.outcome}")
        if self.interpreted:
            raise ValueError(f"an interpreted run has no speedup; got {self.speedup}")
        if self.runtime_ms is None or self.reference_ms is None:
            raise ValueError("a speedup needs runtime_ms and reference_ms")
        if self.speedup_low is None or self.speedup_high is None:
            raise ValueError("a speedup needs both bounds of its confidence interval")
        if not self.speedup_low <= self.speedup <= self.speedup_high:
            raise ValueError(
                f"a speedup must lie in its interval; got {self.speedup} and {self.speedup_low} to {self.speedup_high}"
            )

    @property
    def is_scored(self) -> bool:
        """Whether the verdict says something about the candidate, so that it can get a reward."""
        return self.outcome is not Outcome.HARNESS_FAILED

    def to_json(self) -> str:
        """Return one line of ASCII with every field. Numbers keep all their bits. Infinity becomes ``"inf"``."""
        return json.dumps(_plain(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Read a verdict that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is no JSON object; or a field is missing, unknown, repeated, of the wrong type, or
                contradicts another.
        """
        try:
            value = json.loads(text, object_pairs_hook=_unrepeated, parse_constant=_refuse_constant)
            verdict = _fitted(cls, value, "a verdict", from_json=True)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"a verdict must be a JSON object: {error}") from None
        except TypeError as error:
            raise ValueError(str(error)) from None
        return typing.cast(Verdict, verdict)


def example_verdict(outcome: str = "correct", *, speedup: float | None = None, **others: Any) -> Verdict:
    """Return a made-up verdict, for example to try a reward function. A speedup's interval is 5 percent to each side.

    >>> example_verdict("correct", speedup=2.0, device="NVIDIA A100").speedup_low
    1.9
    """
    chosen = Outcome(outcome)
    made_up: dict[str, Any] = {
        "compiled": chosen not in (*NEVER_COMPILED, Outcome.HARNESS_FAILED),
        "reason": None if chosen is Outcome.CORRECT else f"an example of {outcome}",
        "task": "example",
        "task_hash": "0" * 64,
        "candidate_hash": "f" * 64,
        "backend": "triton",
        "device": "NVIDIA H200",
    }
    if speedup is not None:
        made_up |= {"speedup": speedup, "speedup_low": 0.95 * speedup, "speedup_high": 1.05 * speedup}
        made_up |= {"runtime_ms": 1.0, "reference_ms": speedup}
    return Verdict(outcome=chosen, **{**made_up, **others})


Record = TypeVar("Record")


def _plain(value: Any) -> Any:
    """Return the value in types that json can write, without loss."""
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"a verdict has the field {next(key for key in keys if keys.count(key) > 1)} twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f'a verdict must be JSON without {name}; infinity is written "inf"')


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _fit_fields(record: Any) -> None:
    """Convert the fields of a frozen dataclass to their annotated types: an int to a float, a list to a tuple."""
    for name, hint in _hints(type(record)).items():
        object.__setattr__(record, name, _fitted(hint, getattr(record, name), name))


def _fitted(hint: Any, value: Any, where: str, from_json: bool = False) -> Any:
    """Convert a value to an annotated type, if that cannot change its meaning. Raise TypeError otherwise."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _fitted(arguments[0], value, where, from_json)
    if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_fitted(arguments[0], one, where, from_json) for one in value)
    if origin is Mapping and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _fitted(arguments[1], one, f"{where}[{key!r}]", from_json) for key, one in value.items()}
    if from_json and is_dataclass(hint) and isinstance(value, dict):
        return _record(typing.cast(type, hint), value, where)
    if from_json and hint is Outcome and value in [one.value for one in Outcome]:
        return Outcome(value)
    if from_json and hint is float and isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return float(value)
    if hint is float and type(value) is int and abs(value) <= 2**53:
        return float(value)
    if isinstance(hint, type) and (type(value) is hint if hint in (bool, int, float) else isinstance(value, hint)):
        return value
    name = getattr(origin or hint, "__name__", str(hint)).lower()
    raise TypeError(f"{where} must be of type {name}; got {value!r}")


LATER_FIELDS: dict[str, Any] = dict.fromkeys(
    [
        *("library_share", "specialised", "deterministic", "aliases_input", "reuses_output"),
        *("memory_bytes", "reference_memory_bytes", "roofline_share", "clock_note"),
    ]
)
"""Fields that verdicts of earlier versions do not have, and the values that are read instead."""


def _record(cls: type[Record], value: dict[str, Any], where: str) -> Record:
    hints = _hints(cls)
    value = {**(LATER_FIELDS if cls is Verdict else {}), **value}
    for name in hints:
        if name not in value:
            raise ValueError(f"{where} has no field {name}")
    for name in value:
        if name not in hints:
            raise ValueError(f"{where} has an unknown field {name!r}")
    fitted = {name: _fitted(hint, value[name], name, from_json=True) for name, hint in hints.items()}
    if "correct" in fitted:
        claimed = fitted.pop("correct")
        if claimed != (fitted["outcome"] is Outcome.CORRECT):
            raise ValueError(f"a verdict of {fitted['outcome']} cannot have correct={claimed}")
    return cls(**fitted)


OUTCOME_ORDER = (
    Outcome.HARNESS_FAILED,
    Outcome.REJECTED,
    Outcome.FORMAT_ERROR,
    Outcome.COMPILE_ERROR,
    Outcome.CRASHED,
    Outcome.OUT_OF_MEMORY,
    Outcome.TIMEOUT,
    Outcome.RUNTIME_ERROR,
    Outcome.WRONG_OUTPUT,
    Outcome.CORRECT,
)
"""Outcomes, from the furthest from a correct answer to the correct one."""


def rank(verdict: Verdict | None) -> tuple[int, float, float]:
    """Return a sort key for verdicts: the outcome, then the speedup's lower bound, then the share of right elements.

    >>> from kernel_coder.judge import example_verdict
    >>> some = [example_verdict(one) for one in ("compile_error", "correct", "rejected", "wrong_output")]
    >>> [one.outcome.value for one in sorted(some, key=rank)]
    ['rejected', 'compile_error', 'wrong_output', 'correct']
    >>> rank(example_verdict("correct", speedup=2.0)) > rank(example_verdict("correct", speedup=1.5))
    True
    """
    if verdict is None:
        return (-1, 0.0, 0.0)
    elements = sum(error.elements for error in verdict.errors)
    wrong = sum(error.mismatches for error in verdict.errors) / elements if elements else 0.0
    return (OUTCOME_ORDER.index(verdict.outcome), verdict.speedup_low or 0.0, -wrong)
