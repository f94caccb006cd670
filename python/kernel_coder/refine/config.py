"""The config of ``refine``: one frozen object, read from flags and saved with the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from kernel_coder.evaluate.config import AnswerConfig, EvaluateConfig, of_the_model
from kernel_coder.evaluate.help import suggestion
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.run.flags import FlagParser, UsageError, flag_of, validated

COMMON_FIELDS = (
    *("model", "strategy", "turns", "parallel", "seconds", "stop_when_correct", "backend", "device", "base_url"),
    "output",
)
"""Fields that ``--help`` shows."""

USAGE = "kernel-coder refine MODULE.py [--resume]"

EVOLVE = {"parallel": 8, "turns": 1000, "feedback_template": "evolve"}
"""Defaults of the strategy evolve. It ends when a budget is spent, so the number of turns is hardly limited."""

EVALUATIONS = 64
"""Budget of the strategy evolve, in judged candidates, if no budget is given."""

Axis = Literal["speedup", "memory", "tile", "kernels"]


class RefineConfig(AnswerConfig):
    """All settings of a search."""

    module: str = Field(description="Python file with Model, get_inputs and get_init_inputs")
    model: str = Field(
        default="nano", description="hub id, local folder, nano, or with --base-url the server's name for a model"
    )

    strategy: Literal["serial", "parallel", "best_of_turns", "evolve"] = Field(
        default="serial",
        description="earlier answers in a prompt: serial: those of its conversation; parallel: none; best_of_turns: "
        "the best ones so far; evolve: some from an archive of different kernels",
    )
    turns: int = Field(default=4, ge=1, description="number of rounds")
    parallel: int = Field(default=1, ge=1, description="answers in a round")
    seconds: float | None = Field(default=None, gt=0, description="budget of wall time, in seconds")
    tokens: int | None = Field(default=None, ge=1, description="budget of generated tokens")
    evaluations: int | None = Field(default=None, ge=1, description="budget of judged candidates")
    stop_at: float | None = Field(default=None, gt=0, description="stop once a kernel has this speedup")
    stop_when_correct: bool = Field(default=False, description="stop at the first correct kernel")

    axes: tuple[Axis, ...] = Field(
        default=("speedup", "memory", "kernels"),
        min_length=1,
        description="evolve: axes of the archive, which keeps the best answer of each cell: speedup, memory (kind of "
        "access), tile (largest block size), kernels (their number)",
    )
    islands: int = Field(default=2, ge=1, description="evolve: number of archives that develop separately")
    migrate_every: int = Field(
        default=4, ge=1, description="evolve: rounds after which each island shows its best answer to the others"
    )
    novelty: float = Field(
        default=0.3, ge=0, le=1, description="evolve: probability that a parent is drawn by novelty, not by fitness"
    )
    fresh: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="evolve: share of answers without a parent; at least one half until an answer is correct",
    )

    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16"] = Field(
        default="fp32", description="precision of the reference"
    )
    output: str | None = Field(default=None, description="folder for the results; default: runs/refine-<module>")

    @model_validator(mode="before")
    @classmethod
    def _other_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        defaults: dict[str, Any] = {}
        if values.get("strategy") == "evolve":
            defaults |= EVOLVE
            if not {"seconds", "tokens", "evaluations", "turns"} & values.keys():
                defaults["evaluations"] = EVALUATIONS
        return {**defaults, **of_the_model({"model": "nano", **values}, AnswerConfig), **values}

    @field_validator("axes", mode="before")
    @classmethod
    def _axes_may_be_one_text(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _islands_have_answers(self) -> RefineConfig:
        if self.strategy == "evolve" and self.islands > self.parallel:
            raise ValueError(
                f"islands must be at most parallel, the number of answers in a round; got {self.islands} islands and "
                f"{self.parallel} answers"
            )
        return self

    @property
    def folder(self) -> Path:
        return Path(self.output or f"runs/refine-{Path(self.module).stem}")

    def model_config_of(self, dtype: str) -> EvaluateConfig:
        """Return the config of the model client, with this dtype."""
        shared = self.model_dump(include={*AnswerConfig.model_fields, "model"} - {"judge"})
        return validated(EvaluateConfig, {**shared, "dtype": dtype, "tasks": self.module})


def parse(arguments: list[str]) -> tuple[RefineConfig, bool]:
    """Return the config of a command line, and whether it resumes an earlier search."""
    parser = FlagParser(
        prog="kernel-coder refine",
        description="Write a faster, verified kernel for one module.",
        add_help=False,
        epilog="Every field of the judge is a flag too, as in --judge.checks 3. A packaged or trained model brings its "
        "own prompt template and token limit. See docs/search.md.",
    )
    parser.add_argument("--help-all", action="help", help="show all flags")
    parser.add_argument("module", help=RefineConfig.model_fields["module"].description)
    parser.add_argument("--resume", action="store_true", help="continue the search in the output folder")
    for name, field in RefineConfig.model_fields.items():
        if name in ("module", "judge"):
            continue
        flag = flag_of(name)
        default = field.get_default(call_default_factory=True)
        default = ",".join(default) if isinstance(default, tuple) else default
        text = f"{field.description} (default {default})" if default is not None else field.description
        if default is False:
            parser.add_argument(flag, dest=name, action="store_true", default=None, help=text)
        else:
            parser.add_argument(flag, dest=name, default=None, help=text, metavar=name.upper())
    given, rest = parser.parse_known_args(arguments)
    values = {name: value for name, value in vars(given).items() if value is not None and name != "resume"}
    judge: dict[str, Any] = {}
    while rest:
        flag, _, value = rest.pop(0).partition("=")
        name = flag.removeprefix("--judge.").replace("-", "_")
        if not flag.startswith("--judge.") or name not in JudgeConfig.model_fields:
            flags = [flag for action in parser._actions for flag in action.option_strings]
            flags += [f"--judge.{field.replace('_', '-')}" for field in JudgeConfig.model_fields]
            hint = suggestion(flag, flags) or "; kernel-coder refine --help-all lists the flags"
            raise UsageError(f"unknown flag {flag}{hint}")
        if not value and not rest:
            raise UsageError(f"{flag} needs a value")
        judge[name] = _value(value or rest.pop(0))
    return validated(RefineConfig, {**values, **({"judge": judge} if judge else {})}), given.resume


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
