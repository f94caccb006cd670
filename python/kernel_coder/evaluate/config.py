"""The config of an evaluation: one frozen object, read from flags and YAML and saved with the results.

Flags override the YAML file, which overrides the defaults here. ``--max-new-tokens`` and ``--max_new_tokens`` are the
same flag.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.supervisor.batching import check_address, devices_of, is_remote
from kernel_coder.policy.defaults import defaults_of
from kernel_coder.run.flags import UsageError, rule
from kernel_coder.run.recipe import flag_values, read_recipe

PASS_AT = (1, 5, 10, 20, 50, 100)
"""pass@k is reported for these k up to the number of samples."""

LISTS = {"--seeds", "--families", "--exclude-families", "--pass-at", "--judge.families", "--judge.require"}
"""Flags whose values may be separated by spaces as well as by commas."""

ALIASES = {"compile-baseline": "judge.compile-baseline", "parallel": "samples"}

COMMON_FIELDS = (
    *("model", "tasks", "limit", "samples", "prompt_template", "max_new_tokens", "backend", "device", "base_url"),
    "output",
)
"""Fields that ``--help`` shows."""

USAGE = "kernel-coder evaluate [--config FILE] [--resume]"

CHANGEABLE_FIELDS = frozenset(
    {
        "tasks", "kernelbench_dir", "families", "exclude_families", "max_level", "limit", "problems", "refused_tasks",
        "samples", "pass_at", "bootstrap_seed", "report_samples", "output", "api_key_env", "concurrency",
        "request_timeout_s", "max_retries", "batch_size", "num_threads", "judge.workers", "judge.retries",
         "judge.audit_dir", "judge_url", "remember", "to_library",
    }
)  # fmt: skip
"""Fields that may differ when a run is resumed: they change the set of tasks, speed and reports, not answers or
verdicts."""


class AnswerConfig(BaseModel):
    """Settings of the model, its answers and the judge, which ``evaluate`` and ``refine`` share."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    gguf_file: str | None = Field(default=None, description="name of a GGUF file inside the model's folder")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="dtype of a local model; auto: bfloat16 on a GPU, float32 on the CPU"
    )
    chat_template: str | None = Field(
        default=None, description="file with a Jinja chat template, or plain, for a tokenizer without one"
    )
    base_url: str | None = Field(
        default=None, description="URL of an OpenAI-compatible server, such as http://localhost:8000/v1"
    )
    api_key_env: str | None = Field(default=None, description="environment variable that holds the server's API key")
    concurrency: int = Field(default=8, ge=1, description="number of requests sent to the server at once")
    request_timeout_s: float = Field(default=600.0, gt=0, description="time limit for one request, in seconds")
    max_retries: int = Field(default=6, ge=0, description="retries of a failed request, with growing waits in between")
    backend: Literal["triton", "cuda", "cpp", "torch"] = Field(
        default="triton", description="language that the answers are written in"
    )
    prompt_template: str = Field(
        default="kernel_coder", description="prompt template: kernel_coder, kernelbench, nano, bare or a .jinja file"
    )
    feedback_template: str = Field(
        default="feedback", description="template of the message after a verdict: feedback, nano or a .jinja file"
    )
    context_turns: int = Field(default=4, ge=1, description="number of latest answers that a prompt shows")
    earlier_reasoning: Literal["keep", "summary", "drop"] = Field(
        default="drop", description="how much reasoning of earlier answers a prompt shows"
    )
    examples: int = Field(
        default=0,
        ge=0,
        description="number of verified kernels of the most similar tasks in the library that a prompt shows",
    )
    library: str | None = Field(
        default=None, description="file of verified kernels; default: $KERNEL_CODER_LIBRARY, then runs/library.sqlite"
    )
    to_library: bool = Field(default=False, description="add the correct kernels to the library")
    temperature: float = Field(default=1.0, ge=0, description="sampling temperature; 0: greedy decoding")
    top_p: float = Field(default=0.97, gt=0, le=1, description="probability mass of nucleus sampling")
    max_new_tokens: int = Field(default=2048, ge=1, description="length limit of an answer, in tokens")
    batch_size: int = Field(default=16, ge=1, description="answers that a local model generates at once")
    num_threads: int | None = Field(default=None, ge=1, description="CPU threads of a local model")
    seed: int = Field(
        default=42, ge=0, description="seed of the run; each sample derives its own from it, the task and its index"
    )
    device: str = Field(
        default="auto", description="device of model and judge: auto (a GPU if there is one), cpu, cuda or cuda:N"
    )
    judge_device: str | None = Field(
        default=None, description="device of the judge, if not that of the model; several GPUs as in cuda:1,cuda:2"
    )
    judge_url: str | None = Field(
        default=None,
        description="address of a judge elsewhere: a service such as http://127.0.0.1:8400 (kernel-coder serve), or a "
        "Ray cluster as in ray://auto?device=cuda",
    )
    judge: JudgeConfig = Field(default_factory=lambda: JudgeConfig.model_validate({}))

    @model_validator(mode="after")
    def _devices_are_valid(self) -> AnswerConfig:
        check_address(self.judge_url, "judge_url")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N; got {self.device}")
        if self.judge_device is not None:
            if self.judge_url is not None:
                raise ValueError(f"judge_device and judge_url exclude each other; got {self.judge_device} and a url")
            if is_remote(self.judge_device):
                raise ValueError(f"judge_device must be a device; judge_url takes addresses; got {self.judge_device}")
            try:
                devices_of(self.judge_device)
            except ValueError as error:
                raise ValueError(f"judge_device: {error}") from None
        return self

    @property
    def judged_on(self) -> str:
        """The judge's device, its devices separated by commas, or its address."""
        return self.judge_url or self.judge_device or self.device

    @property
    def judged_elsewhere(self) -> bool:
        """Whether the judge uses only GPUs that a local model does not use."""
        on = ["cuda:0" if name == "cuda" else name for name in self.judged_on.split(",")]
        return "cpu" not in on and ("cuda:0" if self.device == "cuda" else self.device) not in on


class EvaluateConfig(AnswerConfig):
    """All settings of an evaluation."""

    model: str = Field(description="hub id, local folder, nano, tiny, or with --base-url the server's name for a model")
    revision: str | None = Field(default=None, description="commit or tag on the hub")
    extra_body: dict[str, Any] = Field(default={}, description="more fields for each request, as JSON")

    tasks: str = Field(
        default="packaged",
        description="task set: kernelbench:level1[,level2], packaged, a folder, a .py, .parquet or .jsonl, a hub id",
    )
    kernelbench_dir: str | None = Field(
        default=None, description="folder with a copy of KernelBench; default: $KERNELBENCH_DIR, then the hub"
    )
    problems: str | None = Field(default=None, description="only the tasks with these numbers, as in 1,2,5-9")
    families: tuple[str, ...] | None = Field(
        default=None, description="only tasks of these families (column family), as in softmax,loss"
    )
    exclude_families: tuple[str, ...] | None = Field(default=None, description="no tasks of these families")
    max_level: int | None = Field(default=None, ge=0, description="no tasks above this level (column level)")
    limit: int | None = Field(default=None, ge=1, description="only the first N tasks")
    refused_tasks: Literal["leave_out", "keep"] = Field(
        default="leave_out",
        description="what to do with KernelBench tasks that the packaged admission list refuses; the results name them",
    )
    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16"] | None = Field(
        default=None, description="precision of the reference; default: that of each task"
    )
    one_shot: bool = Field(default=False, description="show a solved example in the prompt")

    samples: int = Field(default=1, ge=1, description="answers sampled for each task; also --parallel")
    turns: int = Field(default=1, ge=1, description="answers in a conversation: each follows a verdict on the last one")
    stop_when_correct: bool = Field(default=False, description="end a conversation after its first correct answer")
    top_k: int = Field(default=0, ge=0, description="sample from the k likeliest tokens; 0: from all")
    seeds: tuple[int, ...] | None = Field(
        default=None, description="several seeds instead of seed, as in 0,1,2; samples counts the answers with each"
    )

    remember: bool = Field(default=False, description="judge equal code for the same task only once")

    pass_at: tuple[int, ...] | None = Field(
        default=None,
        description=f"values of k for pass@k, as in 1,5; default: {PASS_AT} up to samples, and samples",
    )
    bootstrap_seed: int = Field(default=0, ge=0, description="seed of the bootstrap for the intervals")
    report_samples: int = Field(default=4, ge=1, description="answers to each task that report.html shows, best first")
    output: str = Field(default="runs/evaluate", description="folder for the results")

    @model_validator(mode="after")
    def _consistent(self) -> EvaluateConfig:
        for k in self.pass_at or ():
            if k < 1:
                raise ValueError(f"pass_at must hold numbers of at least 1; got {k}")
            if k > self.answers:
                have = f"samples = {self.samples}" + (f" with {len(self.seeds)} seeds" if self.seeds else "")
                raise ValueError(f"pass@{k} needs at least {k} samples of each task; got {have}")
        if self.seeds is not None and not 0 < len(self.seeds) == len(set(self.seeds)):
            raise ValueError(f"seeds must be different numbers, as in 0,1,2; got {','.join(map(str, self.seeds))}")
        if self.seeds and min(self.seeds) < 0:
            raise ValueError(f"seeds must not be negative; got {min(self.seeds)}")
        if self.problems is not None:
            parse_numbers(self.problems)
        if self.base_url is None:
            if self.api_key_env is not None or self.extra_body:
                raise ValueError("api_key_env and extra_body need a server; set base_url")
        else:
            url = urlsplit(self.base_url)
            if url.scheme not in ("http", "https") or not url.hostname:
                raise ValueError(f"base_url must look like http://localhost:8000/v1; got {self.base_url!r}")
            if url.username or url.password:
                raise ValueError("base_url must not hold a password; api_key_env names a variable that holds the key")
            if self.gguf_file or self.revision or self.chat_template or self.top_k:
                raise ValueError("gguf_file, revision, chat_template and top_k are for local models, not for base_url")
        return self

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return self.seeds or (self.seed,)

    @property
    def answers(self) -> int:
        """The number of answers to each task: ``samples`` with each seed."""
        return self.samples * len(self.all_seeds)

    def seed_of(self, number: int) -> tuple[int, int]:
        """Return the seed of a task's answer with this index, and the answer's index among those with that seed.

        >>> config = EvaluateConfig(model="tiny", samples=2, seeds=(5, 6, 7))
        >>> [config.seed_of(number) for number in range(config.answers)]
        [(5, 0), (6, 0), (7, 0), (5, 1), (6, 1), (7, 1)]
        """
        return self.all_seeds[number % len(self.all_seeds)], number // len(self.all_seeds)

    @property
    def ks(self) -> tuple[int, ...]:
        """The values of k for which pass@k is reported."""
        if self.pass_at is not None:
            return tuple(sorted(set(self.pass_at)))
        return tuple(sorted({k for k in PASS_AT if k < self.answers} | {self.answers}))

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences that change answers or verdicts, one clause each. Both configs as from
    ``model_dump(mode="json")``.

    >>> differences({"temperature": 1.0, "samples": 1}, {"temperature": 0.5, "samples": 9})
    ['temperature was 1.0 and is 0.5']
    """
    old, new = _flat(before), _flat(now)
    return [
        f"{name} was {old.get(name)} and is {new.get(name)}"
        for name in dict.fromkeys((*old, *new))
        if name not in CHANGEABLE_FIELDS and old.get(name) != new.get(name)
    ]


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in values.items() if name != "judge"}
    if "base_url" in flat:  # only whether there is a server counts: the same model can move to another address
        flat["base_url"] = None if flat["base_url"] is None else "given"
    if "device" in flat:
        flat["judge_device"] = (flat.get("judge_device") or flat["device"]).partition(":")[0]
        if flat.get("judge_url") is not None:  # the same judge can move to another address
            flat["judge_device"] = "that of judge_url"
        flat["device"] = flat["device"].partition(":")[0]
    return flat | {f"judge.{name}": value for name, value in (values.get("judge") or {}).items()}


def parse_numbers(text: str) -> list[int]:
    """Return the numbers in a list of numbers and ranges.

    >>> parse_numbers("1,2,5-9")
    [1, 2, 5, 6, 7, 8, 9]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"problems must be numbers and ranges such as 1,2,5-9; got {text!r}")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def load_config(path: str | Path | None, flags: list[str] | None = None) -> EvaluateConfig:
    """Return the config from a YAML file (None: the defaults) and flags, which override it. Raises :class:`UsageError`.

    >>> load_config(None, ["--model", "tiny", "--top-p", "0.9", "--judge.checks=3"]).judge.checks
    3
    """
    values = read_recipe(path, "fields such as model and tasks")
    given = _parse_flags(flags or [])
    judge = {**(values.get("judge") or {}), **(given.get("judge") or {})}
    values = {**values, **given, **({"judge": judge} if judge else {})}
    try:
        return EvaluateConfig.model_validate({**of_the_model(values, EvaluateConfig), **values})
    except ValidationError as error:
        raise UsageError(_sentence(error)) from None


def of_the_model(values: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """Return the config fields for which the local model in ``values`` has its own defaults, with these values.

    >>> of_the_model({"model": "nano"}, EvaluateConfig)["max_new_tokens"]
    384
    """
    if values.get("base_url") is not None or not isinstance(model := values.get("model"), str):
        return {}
    return {name: value for name, value in defaults_of(model).items() if name in kind.model_fields}


def field_names() -> list[str]:
    """Return the names of all flags, without the leading dashes."""
    own = [name for name in EvaluateConfig.model_fields if name != "judge"]
    return [name.replace("_", "-") for name in (*own, *(f"judge.{name}" for name in JudgeConfig.model_fields))]


def _is_switch(flag: str) -> bool:
    section, _, name = flag.replace("-", "_").rpartition(".")
    fields = (JudgeConfig if section == "judge" else EvaluateConfig).model_fields
    return name in fields and bool in (fields[name].annotation, *getattr(fields[name].annotation, "__args__", ()))


def _parse_flags(flags: list[str]) -> dict[str, Any]:
    valid = [*field_names(), *ALIASES]
    given: list[str] = []
    for index, flag in enumerate(flags):
        if not flag.startswith("--"):
            if given and not given[-1].startswith("--") and given[-2] in LISTS:  # --seeds 0 1 2 is --seeds 0,1,2
                given[-1] += f",{flag}"
            else:
                given.append(flag)
            continue
        name, equals, value = flag[2:].partition("=")
        name = name.replace("_", "-")
        positive = re.sub(r"^(judge\.)?no-", r"\1", name)
        if positive != name and _is_switch(positive):
            name, equals, value = positive, "=", "false"
        if name not in (*valid, "help-all"):
            hint = _nearest(name, valid) or "; kernel-coder evaluate --help-all lists the flags"
            raise UsageError(f"unknown flag --{name}{hint}")
        name = ALIASES.get(name, name)
        given.append(f"--{name}{equals}{value}")
        bare = index + 1 == len(flags) or flags[index + 1].startswith("--")
        if not equals and bare and _is_switch(name):
            given.append("true")
    given = ["--help" if flag == "--help-all" else flag for flag in given]
    return flag_values(EvaluateConfig, given, USAGE, kebab_case=True, parse_none_str="none")


def _nearest(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    return f"; did you mean --{close[0]}?" if close else ""


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"--{name} is missing; a run needs at least --model"
    if first["type"] == "extra_forbidden":
        return f"unknown key {name} in the config{_nearest(name, field_names())}"
    return f"{name}: {rule(first)}" if name else rule(first)
