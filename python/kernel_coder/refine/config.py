"""The flags of ``refine``: parsed, used and written down as one frozen object."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.run.flags import UsageError, validated

SHARED = (
    *("model", "base_url", "api_key_env", "gguf_file", "chat_template", "concurrency", "request_timeout_s"),
    *("max_retries", "backend", "temperature", "top_p", "max_new_tokens", "batch_size", "num_threads", "seed"),
)
"""Fields that mean the same in an evaluation."""


NANO = {
    "prompt_template": "nano",
    "feedback_template": "nano",
    "context_turns": 1,
    "earlier_reasoning": "keep",
    "max_new_tokens": 384,
}
"""What the packaged model was taught with (configs/nano-turns.yaml), and has unless something else is asked for."""


class RefineConfig(BaseModel):
    """Every choice of a search."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    module: str = Field(description="Python file with Model, get_inputs and get_init_inputs")
    model: str = Field(default="nano", description="hub id, local folder, nano, or the name that a server knows")
    base_url: str | None = Field(default=None, description="an OpenAI-compatible server: http://localhost:8000/v1")
    api_key_env: str | None = Field(default=None, description="environment variable with the server's API key")
    gguf_file: str | None = Field(default=None, description="name of a GGUF file inside the model's folder")
    chat_template: str | None = Field(default=None, description="file with a Jinja chat template, or plain")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N: of judge and local model")

    strategy: Literal["serial", "parallel", "best_of_turns"] = Field(
        default="serial",
        description="serial: conversations; parallel: first answers only; best_of_turns: answers to the best so far",
    )
    turns: int = Field(default=4, ge=1, description="rounds of answers")
    parallel: int = Field(default=1, ge=1, description="answers in a round: conversations side by side")
    context_turns: int = Field(
        default=4, ge=1, description="earlier answers that a prompt shows: the last or the best; nano: 1"
    )
    earlier_reasoning: Literal["keep", "summary", "drop"] = Field(
        default="drop", description="what earlier answers in a prompt keep of their reasoning; nano: keep"
    )
    seconds: float | None = Field(default=None, gt=0, description="budget: of wall time")
    tokens: int | None = Field(default=None, ge=1, description="budget: written by the model")
    evaluations: int | None = Field(default=None, ge=1, description="budget: candidates that are run")
    stop_at: float | None = Field(default=None, gt=0, description="a kernel so many times faster is good enough")
    stop_when_correct: bool = Field(default=False, description="any correct kernel is good enough")

    backend: Literal["triton", "cuda", "cpp", "torch"] = "triton"
    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16"] = "fp32"
    prompt_template: str = Field(default="kernel_coder", description="a template or a .jinja file; nano: nano")
    feedback_template: str = Field(default="feedback", description="what is said to a verdict; nano: nano")
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=0.97, gt=0, le=1)
    max_new_tokens: int = Field(default=2048, ge=1, description="length of an answer; nano: 384")
    batch_size: int = Field(default=16, ge=1, description="answers that a local model writes at a time")
    concurrency: int = Field(default=8, ge=1, description="requests that a server has at a time")
    request_timeout_s: float = Field(default=600.0, gt=0)
    max_retries: int = Field(default=6, ge=0)
    num_threads: int | None = Field(default=None, ge=1, description="CPU threads of a local model")
    seed: int = Field(default=42, ge=0)
    judge: JudgeConfig = Field(default_factory=lambda: JudgeConfig.model_validate({}))
    output: str | None = Field(default=None, description="folder of the results; default: runs/refine-<module>")

    @model_validator(mode="before")
    @classmethod
    def _as_nano_was_taught(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("model", "nano") == "nano" and values.get("base_url") is None:
            return {**NANO, **values}
        return values

    @property
    def folder(self) -> Path:
        return Path(self.output or f"runs/refine-{Path(self.module).stem}")

    def model_config_of(self, device: str, dtype: str) -> EvaluateConfig:
        """What the clients of models take."""
        same = {name: getattr(self, name) for name in SHARED}
        more = {"device": device, "dtype": dtype, "prompt_template": self.prompt_template, "tasks": self.module}
        return validated(EvaluateConfig, {**same, **more})


def parse(arguments: list[str]) -> tuple[RefineConfig, bool]:
    """The config of a command line, and whether an earlier search is gone on with."""
    parser = argparse.ArgumentParser(
        prog="kernel-coder refine",
        description="Write a faster, verified kernel for one module.",
        allow_abbrev=False,
        epilog="Every field of the judge is a flag too: --judge.checks 3. See docs/multi_turn.md.",
    )
    parser.add_argument("module", help=RefineConfig.model_fields["module"].description)
    parser.add_argument("--resume", action="store_true", help="go on with the search in the output folder")
    for name, field in RefineConfig.model_fields.items():
        if name in ("module", "judge"):
            continue
        flag = "--" + name.replace("_", "-")
        default = field.get_default(call_default_factory=True)
        told = f"{field.description or ''} ({default})" if default is not None else field.description
        if default is False:
            parser.add_argument(flag, dest=name, action="store_true", default=None, help=told)
        else:
            parser.add_argument(flag, dest=name, default=None, help=told, metavar=name.upper())
    given, rest = parser.parse_known_args(arguments)
    values = {name: value for name, value in vars(given).items() if value is not None and name != "resume"}
    judge: dict[str, Any] = {}
    while rest:
        flag, _, value = rest.pop(0).partition("=")
        name = flag.removeprefix("--judge.").replace("-", "_")
        if not flag.startswith("--judge.") or name not in JudgeConfig.model_fields:
            raise UsageError(f"unknown flag {flag}; python -m kernel_coder.refine --help lists them")
        if not value and not rest:
            raise UsageError(f"{flag} needs a value")
        judge[name] = _value(value or rest.pop(0))
    return validated(RefineConfig, {**values, **({"judge": judge} if judge else {})}), given.resume


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
