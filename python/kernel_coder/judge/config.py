"""The settings of the judge. Every field is a flag of ``kernel-coder judge`` and a key of a recipe's YAML."""

from __future__ import annotations

import os
import re
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Family = Literal[
    "own", "normal", "scaled", "shifted", "structured", "tiny", "huge", "offset", "negative", "outlier", "ties"
]

FAMILIES: tuple[Family, ...] = get_args(Family)
"""All families of inputs; :mod:`kernel_coder.judge.examiner.input_families` describes each."""

BUILDS = frozenset({"cuda", "cpp"})
"""Backends whose candidates a C++ or CUDA compiler builds. That takes longer than Triton's compiler."""

SHARED_BYTES = {
    **{70: 98304, 75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376},
    **{90: 232448, 100: 232448, 103: 232448, 110: 232448, 120: 101376, 121: 101376},
}
"""Upper limit of a block's shared memory in bytes, by compute capability, from the CUDA C++ Programming Guide."""


def capability(name: str) -> int:
    """Return the compute capability of an architecture as a number. Raise ValueError if it is unknown.

    >>> capability("sm_90"), capability("sm_120")
    (90, 120)
    """
    found = re.fullmatch(r"sm_(\d+)a?", name)
    if found is None or int(found[1]) not in SHARED_BYTES:
        known = ", ".join(f"sm_{one}" for one in SHARED_BYTES)
        raise ValueError(f"an architecture must be one of {known}; got {name!r}")
    return int(found[1])


class JudgeConfig(BaseModel):
    """The checks and time limits of a judge, and what candidates may use.

    >>> JudgeConfig(checks=3).families[:3]
    ('own', 'normal', 'scaled')
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    checks: int = Field(
        default=5,
        ge=1,
        le=100,
        description="number of calls on fresh inputs whose outputs are compared with the float64 reference. 1 means a"
        " single call; with more, every family has at least one",
    )
    families: tuple[Family, ...] = Field(
        default=FAMILIES,
        min_length=1,
        description="families of inputs, used in turn",
    )
    hidden_shapes: Literal["require", "flag", "off"] = Field(
        default="flag",
        description="also check other sizes, if the task allows it; an error there fails the candidate (require) or"
        " makes it `specialised` (flag); wrong values there always fail it",
    )
    backward: bool = Field(default=False, description="also compare the gradients of inputs and parameters")
    training: bool | None = Field(
        default=None, description="call train(), if true, or eval() on both modules; None: leave them as constructed"
    )
    ablation: bool = Field(default=True, description="reject outputs that do not come from the candidate's own kernels")
    kernels: Literal["backend", "any"] = Field(
        default="backend",
        description="whose kernels count as the candidate's own: those of its backend, or any that it brings",
    )
    profile: bool = Field(
        default=True, description="measure kernel_share on a GPU; takes 2 to 20 s if torch's operators run too"
    )
    min_kernel_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="minimum share of the device time, and of the reference's arithmetic, that the candidate's own"
        " kernels must do; ignored if backend is torch or ablation is off",
    )
    allow: tuple[Literal["library_matmul"], ...] = Field(
        default=(),
        description="library calls that are allowed beside own kernels: library_matmul for products and convolutions",
    )
    timing: bool = Field(default=True, description="measure a speedup, unless kernels are interpreted")
    timed_calls: int = Field(
        default=100, ge=0, description="number of the candidate's calls that are timed; their outputs are checked too"
    )
    timing_s: float = Field(
        default=10.0, gt=0, description="time limit for these calls in seconds; slow candidates are timed less often"
    )
    compile_for: str | None = Field(
        default=None, description="an architecture such as sm_90 that interpreted kernels must also compile for"
    )
    compile_baseline: bool = Field(default=False, description="also time the reference under torch.compile")
    null_candidates: bool = Field(
        default=True,
        description="refuse tasks and inputs on which a candidate that returns zeros, ones or the like would pass",
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        description="time limit in seconds of a candidate's build and calls, without the judge's own work and waits "
        "for a GPU; None: 60, or 300 for cuda, cpp",
    )
    memory_bytes: int | None = Field(
        default=8 << 30, gt=0, description="upper limit of a candidate's host memory in bytes; None: no limit"
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="number of candidates judged at the same time; None: one for each core, at most 12, and on a GPU at"
        " most as many as its memory allows",
    )
    prestart: bool | None = Field(
        default=None,
        description="start the next candidate's process early; None: only on a GPU, where the process holds half a GiB",
    )
    threads: int = Field(default=1, ge=1, description="number of CPU threads of the candidate and of the reference")
    retries: int = Field(default=1, ge=0, description="how often to judge a candidate again if the judge itself failed")
    seed: int | None = Field(
        default=None,
        ge=0,
        description="seed of the inputs, only to repeat a verdict: candidates that know it can cheat; None: random",
    )
    require: tuple[str, ...] | None = Field(
        default=None, description="layers of the sandbox that this machine must have; None: the default ones"
    )
    audit_dir: str | None = Field(
        default=None, description="folder for records with which an answer can be judged again; None: no records"
    )

    @field_validator("hidden_shapes", mode="before")
    @classmethod
    def _was_a_bool(cls, value: object) -> object:
        """Convert values of versions before 0.3, when this field was a bool. YAML also reads ``off`` as false."""
        names: dict[object, str] = {True: "flag", False: "off", "true": "flag", "false": "off"}
        return names.get(value, value) if isinstance(value, bool | str) else value

    @model_validator(mode="after")
    def _consistent(self) -> JudgeConfig:
        if not 0 < len(self.families) <= len(set(self.families)):
            raise ValueError(f"families must name each kind once; got {', '.join(self.families)}")
        if self.compile_for is not None:
            try:
                capability(self.compile_for)
            except ValueError as error:
                raise ValueError(f"compile_for: {error}") from None
        return self

    def time_limit_s(self, backend: str) -> float:
        """Return the time limit of a candidate of this backend, in seconds.

        >>> JudgeConfig().time_limit_s("triton"), JudgeConfig(timeout_s=5).time_limit_s("cuda")
        (60.0, 5.0)
        """
        return self.timeout_s or (300.0 if backend in BUILDS else 60.0)

    def starts_ahead(self, device: str) -> bool:
        """Return whether the next candidate's process is started while another candidate is judged.

        >>> JudgeConfig().starts_ahead("cuda:0"), JudgeConfig().starts_ahead("cpu")
        (True, False)
        """
        return device != "cpu" if self.prestart is None else self.prestart

    def parallel(self) -> int:
        """Return how many candidates are judged at the same time."""
        return self.workers or min(len(os.sched_getaffinity(0)), 12)
