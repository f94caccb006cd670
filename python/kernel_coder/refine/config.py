"""The config of ``refine``: one frozen object, read from flags and saved with the results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.evaluate.help import suggestion
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.run.flags import UsageError, validated

SHARED = (
    *("model", "base_url", "api_key_env", "gguf_file", "chat_template", "concurrency", "request_timeout_s"),
    *("max_retries", "backend", "temperature", "top_p", "max_new_tokens", "batch_size", "num_threads", "seed"),
)
"""Fields with the same meaning as in ``EvaluateConfig``."""

COMMON = (
    *("model", "strategy", "turns", "parallel", "seconds", "stop_when_correct", "backend", "device", "base_url"),
    "output",
)
"""Fields that ``--help`` shows."""

USAGE = "kernel-coder refine MODULE.py [--resume]"

NANO = {
    "prompt_template": "nano",
    "feedback_template": "nano",
    "context_turns": 1,
    "earlier_reasoning": "keep",
    "max_new_tokens": 384,
}
"""Defaults for the packaged model: the settings of its training (configs/nano-turns.yaml)."""


class RefineConfig(BaseModel):
    """All settings of a search."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    module: str = Field(description="Python file with Model, get_inputs and get_init_inputs")
    model: str = Field(
        default="nano", description="hub id, local folder, nano, or with --base-url the server's name for a model"
    )
    base_url: str | None = Field(
        default=None, description="URL of an OpenAI-compatible server, such as http://localhost:8000/v1"
    )
    api_key_env: str | None = Field(default=None, description="environment variable that holds the server's API key")
    gguf_file: str | None = Field(default=None, description="name of a GGUF file inside the model's folder")
    chat_template: str | None = Field(default=None, description="file with a Jinja chat template, or plain")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="dtype of a local model; auto: bfloat16 on a GPU, float32 on the CPU"
    )
    device: str = Field(default="auto", description="device of judge and local model: auto, cpu, cuda or cuda:N")

    strategy: Literal["serial", "parallel", "best_of_turns"] = Field(
        default="serial",
        description="serial: each conversation sees its own answers; parallel: no answer sees another; best_of_turns: "
        "every answer sees the best ones so far",
    )
    turns: int = Field(default=4, ge=1, description="number of rounds")
    parallel: int = Field(default=1, ge=1, description="answers in a round")
    context_turns: int = Field(default=4, ge=1, description="number of earlier answers that a prompt shows; for nano 1")
    earlier_reasoning: Literal["keep", "summary", "drop"] = Field(
        default="drop", description="how much reasoning of earlier answers a prompt shows; for nano keep"
    )
    seconds: float | None = Field(default=None, gt=0, description="budget of wall time, in seconds")
    tokens: int | None = Field(default=None, ge=1, description="budget of generated tokens")
    evaluations: int | None = Field(default=None, ge=1, description="budget of judged candidates")
    stop_at: float | None = Field(default=None, gt=0, description="stop once a kernel has this speedup")
    stop_when_correct: bool = Field(default=False, description="stop at the first correct kernel")

    backend: Literal["triton", "cuda", "cpp", "torch"] = Field(
        default="triton", description="language that the kernels are written in"
    )
    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16"] = Field(
        default="fp32", description="precision of the reference"
    )
    prompt_template: str = Field(
        default="kernel_coder", description="name of a prompt template or a .jinja file; for nano nano"
    )
    feedback_template: str = Field(
        default="feedback", description="template of the message after a verdict; for nano nano"
    )
    temperature: float = Field(default=1.0, ge=0, description="sampling temperature; 0: greedy decoding")
    top_p: float = Field(default=0.97, gt=0, le=1, description="probability mass of nucleus sampling")
    max_new_tokens: int = Field(default=2048, ge=1, description="length limit of an answer, in tokens; for nano 384")
    batch_size: int = Field(default=16, ge=1, description="answers that a local model generates at once")
    concurrency: int = Field(default=8, ge=1, description="number of requests sent to the server at once")
    request_timeout_s: float = Field(default=600.0, gt=0, description="time limit for one request, in seconds")
    max_retries: int = Field(default=6, ge=0, description="retries of a failed request, with growing waits in between")
    num_threads: int | None = Field(default=None, ge=1, description="CPU threads of a local model")
    seed: int = Field(default=42, ge=0, description="seed of the search; each answer derives its own from it")
    judge: JudgeConfig = Field(default_factory=lambda: JudgeConfig.model_validate({}))
    output: str | None = Field(default=None, description="folder for the results; default: runs/refine-<module>")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_nano(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("model", "nano") == "nano" and values.get("base_url") is None:
            return {**NANO, **values}
        return values

    @property
    def folder(self) -> Path:
        return Path(self.output or f"runs/refine-{Path(self.module).stem}")

    def model_config_of(self, device: str, dtype: str) -> EvaluateConfig:
        """The config of the model client."""
        shared = {name: getattr(self, name) for name in SHARED}
        others = {"device": device, "dtype": dtype, "prompt_template": self.prompt_template, "tasks": self.module}
        return validated(EvaluateConfig, {**shared, **others})


def parse(arguments: list[str]) -> tuple[RefineConfig, bool]:
    """The config of a command line, and whether it resumes an earlier search."""
    parser = argparse.ArgumentParser(
        prog="kernel-coder refine",
        description="Write a faster, verified kernel for one module.",
        add_help=False,
        allow_abbrev=False,
        epilog="Every field of the judge is a flag too, as in --judge.checks 3. See docs/multi_turn.md.",
    )
    parser.add_argument("--help-all", action="help", help="show all flags")
    parser.add_argument("module", help=RefineConfig.model_fields["module"].description)
    parser.add_argument("--resume", action="store_true", help="continue the search in the output folder")
    for name, field in RefineConfig.model_fields.items():
        if name in ("module", "judge"):
            continue
        flag = "--" + name.replace("_", "-")
        default = field.get_default(call_default_factory=True)
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
