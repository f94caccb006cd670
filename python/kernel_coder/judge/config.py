"""How candidates are judged. Every field is a flag of ``python -m kernel_coder.judge``, and one of a recipe's YAML."""

from __future__ import annotations

import os
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Family = Literal["own", "normal", "scaled", "shifted", "structured"]

FAMILIES: tuple[Family, ...] = ("own", "normal", "scaled", "shifted", "structured")
"""Kinds of inputs; :mod:`kernel_coder.judge.examiner.input_families` says what they are."""

BUILDS = frozenset({"cuda", "cpp"})
"""Backends whose candidates call a compiler that takes its time."""


SHARED_BYTES = {70: 98304, 75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448}

SHARED_BYTES |= {100: 232448, 103: 232448, 110: 232448, 120: 101376, 121: 101376}
"""Shared memory that one block may have, by compute capability. Source: CUDA C++ Programming Guide, its table."""


def capability(name: str) -> int:
    """
    >>> capability("sm_90"), capability("sm_120")
    (90, 120)
    """
    found = re.fullmatch(r"sm_(\d+)a?", name)
    if found is None or int(found[1]) not in SHARED_BYTES:
        known = ", ".join(f"sm_{one}" for one in SHARED_BYTES)
        raise ValueError(f"an architecture must be one of {known}; got {name!r}")
    return int(found[1])


class JudgeConfig(BaseModel):
    """What a judge checks, how long it waits, and what it allows.

    >>> JudgeConfig(checks=3).families
    ('own', 'normal', 'scaled', 'shifted', 'structured')
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    checks: int = Field(
        default=5, ge=1, le=100, description="calls on fresh inputs that are compared with the float64 oracle"
    )
    families: tuple[Family, ...] = Field(default=FAMILIES, min_length=1, description="kinds of inputs, taken in turn")
    hidden_shapes: bool = Field(
        default=True, description="one more check with another batch size, where the task allows it"
    )
    backward: bool = Field(default=False, description="also compare the gradients of inputs and parameters")
    training: bool | None = Field(
        default=None, description="call train() or eval() on both modules; None: as constructed"
    )
    ablation: bool = Field(default=True, description="reject results that do not come from the candidate's own kernels")
    profile: bool = Field(
        default=True, description="measure kernel_share, on a GPU; takes some two seconds a candidate"
    )
    min_kernel_share: float = Field(default=0.0, ge=0, le=1, description="device time that must be in its own kernels")
    timing: bool = Field(default=True, description="measure a speedup, where kernels are not interpreted")
    timed_calls: int = Field(default=100, ge=0, description="calls of the candidate that are timed, and checked too")
    timing_s: float = Field(default=10.0, gt=0, description="slow candidates are timed less often, to stay within this")
    compile_for: str | None = Field(
        default=None, description="interpreted kernels must also compile for this architecture, such as sm_90"
    )
    compile_baseline: bool = Field(default=False, description="also time the reference under torch.compile")
    null_candidates: bool = Field(
        default=True, description="refuse a task, or a candidate's inputs, on which zeros, ones and the like would pass"
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        description="a candidate's life, without waiting for a GPU; None: 60, or 300 with a build",
    )
    memory_bytes: int | None = Field(default=8 << 30, gt=0, description="host memory of a candidate; None: not bounded")
    workers: int | None = Field(default=None, ge=1, description="candidates at a time; None: one a core, at most 12")
    prestart: bool | None = Field(
        default=None,
        description="start the next candidate's process while one is judged; None: on a GPU, where it holds half a GiB",
    )
    threads: int = Field(default=1, ge=1, description="CPU threads of a candidate and of the reference")
    retries: int = Field(default=1, ge=0, description="times that a failure of the harness itself is tried again")
    seed: int | None = Field(default=None, ge=0, description="for reproduction only: a known seed is no secret")
    require: tuple[str, ...] | None = Field(
        default=None, description="layers without which nothing is judged; None: default"
    )
    audit_dir: str | None = Field(default=None, description="folder for records that let an answer be judged again")

    @model_validator(mode="after")
    def _consistent(self) -> JudgeConfig:
        if not 0 < len(self.families) <= len(set(self.families)):
            raise ValueError(f"families must name each kind once; got {', '.join(self.families)}")
        if self.compile_for is not None:
            try:
                capability(self.compile_for)
            except ValueError as error:
                raise ValueError(f"compile_for: {error}") from None
        if self.min_kernel_share > 0 and not (self.profile and self.ablation):
            raise ValueError("min_kernel_share needs profile and ablation, which are switched off")
        return self

    def life_s(self, backend: str) -> float:
        """The time limit of a candidate of this backend.

        >>> JudgeConfig().life_s("triton"), JudgeConfig().life_s("cuda"), JudgeConfig(timeout_s=5).life_s("cuda")
        (60.0, 300.0, 5.0)
        """
        return self.timeout_s or (300.0 if backend in BUILDS else 60.0)

    def starts_ahead(self, device: str) -> bool:
        """Whether a process waits for the next candidate.

        >>> JudgeConfig().starts_ahead("cuda:0"), JudgeConfig().starts_ahead("cpu")
        (True, False)
        """
        return device != "cpu" if self.prestart is None else self.prestart

    def parallel(self) -> int:
        """Candidates at a time."""
        return self.workers or min(len(os.sched_getaffinity(0)), 12)
