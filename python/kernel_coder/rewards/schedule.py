"""Weights of rewards that change during a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kernel_coder.rewards.errors import RewardError

KINDS = ("constant", "linear", "cosine", "stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A factor of a reward's weight that depends on the step.

    ==========  ==============================================================================================
    kind        factor
    ==========  ==============================================================================================
    constant    1
    linear      from ``initial`` at ``start_step`` to ``final`` at ``end_step``, in a straight line
    cosine      from ``initial`` at ``start_step`` to ``final`` at ``end_step``, along half a cosine
    stages      that of the last stage that has begun: ``stages={0: 1.0, 500: 0.0}`` switches off at step 500
    ==========  ==============================================================================================

    Before ``start_step`` the factor is ``initial``, after ``end_step`` it is ``final``.

    Raises:
        RewardError: a field does not fit the kind, the range of steps is empty, or no stage begins at step 0.

    >>> decay = Schedule(kind="linear", end_step=100)
    >>> decay(0), decay(25), decay(100), decay(1000)
    (1.0, 0.75, 0.0, 0.0)
    >>> Schedule(kind="stages", stages={0: 1.0, 500: 0.0})(499)
    1.0
    """

    kind: str = "constant"
    start_step: int = 0
    end_step: int | None = None
    initial: float = 1.0
    final: float = 0.0
    stages: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RewardError(f"schedule kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        for name in ("initial", "final"):
            _number(getattr(self, name), f"schedule {name}")
        if self.kind in ("linear", "cosine"):
            if self.end_step is None:
                raise RewardError(f"schedule {self.kind} needs end_step, the step at which the factor is final")
            if not 0 <= self.start_step < self.end_step:
                raise RewardError(
                    f"schedule {self.kind} needs 0 <= start_step < end_step; got {self.start_step} and {self.end_step}"
                )
        elif self.end_step is not None:
            raise RewardError(f"schedule {self.kind} has no end_step; linear and cosine have")
        if self.kind == "stages":
            if not self.stages or 0 not in self.stages or min(self.stages) < 0:
                raise RewardError(f"schedule stages needs factors by step, the first at step 0; got {self.stages}")
            for factor in self.stages.values():
                _number(factor, "a schedule's stage")
        elif self.stages is not None:
            raise RewardError(f"schedule {self.kind} has no stages; set kind: stages")

    def __call__(self, step: int) -> float:
        """Return the factor at this step, counted from 0."""
        if self.kind == "constant":
            return 1.0
        if self.stages is not None:
            return float(self.stages[max(start for start in self.stages if start <= max(step, 0))])
        assert self.end_step is not None  # checked in __post_init__
        done = min(max((step - self.start_step) / (self.end_step - self.start_step), 0.0), 1.0)
        if self.kind == "cosine":
            done = (1.0 - math.cos(math.pi * done)) / 2.0
        return (1.0 - done) * self.initial + done * self.final

    @classmethod
    def parse(cls, value: Schedule | Mapping[str, Any] | str | None) -> Schedule:
        """Makes a schedule from the value in a config: None, the name of a kind, or a mapping of the fields.

        >>> Schedule.parse({"kind": "stages", "stages": {"0": 1, "500": 0}})(500)
        0.0
        """
        if value is None or isinstance(value, Schedule):
            return value or cls()
        if isinstance(value, str):
            return cls(kind=value)
        if not isinstance(value, Mapping):
            raise RewardError(f"schedule must be the name of a kind or its fields; got {value!r}")
        names = [field.name for field in fields(cls)]
        for key in value:
            if key not in names:
                raise RewardError(f"schedule has no field {key}; it has {', '.join(names)}")
        values = dict(value)
        try:
            if isinstance(values.get("stages"), Mapping):  # the keys of JSON objects are text
                values["stages"] = {int(step): factor for step, factor in values["stages"].items()}
            for name in ("start_step", "end_step"):
                if values.get(name) is not None:
                    values[name] = int(values[name])
        except (TypeError, ValueError) as error:
            raise RewardError(f"the steps of a schedule must be whole numbers; got {value}") from error
        return cls(**values)


def _number(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RewardError(f"{name} must be a finite number; got {value!r}")
