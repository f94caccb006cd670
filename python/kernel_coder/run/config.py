"""The config sections that every kind of run has, and the reading of a config from a YAML file and flags.

A config is parsed, used and logged as the same frozen object. Flags override the YAML file, which overrides defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernel_coder.run.errors import UsageError
from kernel_coder.run.flags import rule
from kernel_coder.run.hashes import sha256_text
from kernel_coder.run.recipe import flag_values, read_recipe


class Section(BaseModel):
    """A frozen group of fields that refuses unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class AdamConfig(Section):
    """The AdamW optimiser, its learning-rate schedule, and the size of a forward pass."""

    learning_rate: float = Field(default=1e-6, ge=0, description="peak learning rate")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay; 0 is none")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of AdamW's mean of gradients")
    adam_beta2: float = Field(default=0.999, ge=0, lt=1, description="decay of AdamW's mean of squared gradients")
    adam_epsilon: float = Field(default=1e-8, gt=0, description="AdamW's constant against division by zero")
    lr_scheduler_type: str = Field(
        default="linear",
        description="learning-rate schedule, by its name in transformers.get_scheduler; linear decays to 0",
    )
    lr_scheduler_kwargs: dict[str, Any] = Field(default={}, description="further arguments of that schedule, as JSON")
    warmup_steps: int = Field(default=0, ge=0, description="updates in which the learning rate rises from 0; 0: none")
    max_grad_norm: float = Field(default=1.0, gt=0, description="gradients with a larger norm are scaled down to it")
    per_device_train_batch_size: int = Field(default=8, ge=1, description="sequences in a forward pass")
    gradient_accumulation_steps: int = Field(
        default=1, ge=1, description="forward passes in an update, on all GPUs together"
    )


class ParallelConfig(Section):
    """How several GPUs work on one run. A run with a single process ignores this section."""

    shard: bool = Field(
        default=True,
        description="divide weights, gradients and optimiser states between the GPUs (FSDP2); false: a whole copy on "
        "each GPU, which is faster where it fits",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        description="copies of the divided model, each on its own group of GPUs of equal size; between the groups "
        "only gradients are exchanged. With one group for each host, weights are gathered only within a host",
    )
    reshard: bool = Field(
        default=True,
        description="free a layer's gathered weights after its forward pass and gather them again for its backward "
        "pass; false: keep them, which needs the memory of the whole weights and saves a third of the communication",
    )
    param_dtype: Literal["bfloat16", "float16"] | None = Field(
        default=None, description="dtype in which divided weights are gathered and compute; none: that of the weights"
    )
    reduce_dtype: Literal["float32", "bfloat16"] | None = Field(
        default="float32", description="dtype in which gradients are summed over the GPUs; none: that of the gradients"
    )
    sync_each_pass: bool = Field(
        default=False,
        description="sum gradients over the GPUs after every forward pass of an update; false: after its last, which "
        "saves communication and holds a gradient of the whole model on each GPU until then",
    )
    async_save: bool = Field(
        default=True,
        description="write the checkpoints of a divided model while training goes on; false: wait until they are "
        "written",
    )
    whole_checkpoints: bool = Field(
        default=False,
        description="gather a divided model on rank 0 for every checkpoint, so that from_pretrained can read it; "
        "false: only for the last one, and each GPU writes its part of the others",
    )
    timeout_s: float = Field(
        default=1800.0,
        gt=0,
        description="end the run if a GPU waits longer for the others, in seconds; longer than the slowest judging of "
        "a step",
    )


class RunConfig(Section):
    """What a run writes, how often, and how long it lasts."""

    output_dir: str = Field(default="runs/default", description="folder for checkpoints, metrics and logs")
    overwrite_output_dir: bool = Field(
        default=False,
        description="remove an earlier run from output_dir unless it is resumed; false: refuse to start there",
    )
    new_folder: bool = Field(
        default=False,
        description="if output_dir holds a run, start in output_dir-2, -3 and so on; the link latest beside them names "
        "the last run, and resume continues it",
    )
    max_steps: int = Field(
        default=100,
        ge=1,
        description="steps of the run, one generation batch each. TRL counts updates, of which a step may do several",
    )
    seed: int = Field(default=42, ge=0, description="seed of everything random: task order, sampling, dropout")
    num_threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of torch; none: torch's default. Results are bit-equal only for equal numbers",
    )
    logging_steps: int = Field(
        default=1, ge=1, description="steps between two printed lines; metrics.jsonl always has every step"
    )
    eval_steps: int | None = Field(
        default=None, ge=1, description="steps between evaluations on held-out tasks, and one at the end; none: never"
    )
    eval_on_start: bool = Field(default=False, description="also evaluate before the first step")
    save_steps: int = Field(
        default=100, ge=1, description="steps between two checkpoints; the last step is always saved"
    )
    save_total_limit: int = Field(default=2, ge=1, description="checkpoints to keep; older ones are deleted")
    max_skipped_updates: int = Field(
        default=10, ge=1, description="stop the run after this many skipped (not finite or unscored) updates in a row"
    )
    report_to: list[str] = Field(
        default=[],
        description="trackers besides TensorBoard and metrics.jsonl, by accelerate's names: wandb, trackio, mlflow, "
        "...",
    )
    project: str = Field(default="kernel-coder", description="project name for these trackers")


NOT_IN_HASH = frozenset(
    {
        "output_dir",
        "overwrite_output_dir",
        "new_folder",
        "report_to",
        "project",
        "save_steps",
        "save_total_limit",
        "logging_steps",
    }
)
"""Fields of :class:`RunConfig` that cannot change a run's numbers."""


class RunnableConfig(Section):
    """The config of a whole run. Each kind of run declares its own sections; all have ``run`` and ``parallel``."""

    if TYPE_CHECKING:

        @property
        def run(self) -> RunConfig: ...
        @property
        def parallel(self) -> ParallelConfig: ...

    def to_yaml(self) -> str:
        """Return the resolved config as YAML, which :func:`load` reads back as an equal config."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)

    def hash(self) -> str:
        """Return the SHA-256 of all fields that can change the run's numbers other than by rounding."""
        values = self.model_dump(mode="json")
        values.pop("parallel", None)
        values["run"] = {name: value for name, value in values["run"].items() if name not in NOT_IN_HASH}
        return sha256_text(repr(values))

    def differences(self, earlier: Mapping[str, Any]) -> list[str]:
        """Return a clause for each field that can change the run's numbers and had another value in an earlier config.

        Args:
            earlier: the earlier config, as :meth:`to_yaml` wrote it.

        >>> class Tiny(RunnableConfig):
        ...     optim: AdamConfig = AdamConfig()
        ...     run: RunConfig = RunConfig()
        >>> Tiny(run=RunConfig(max_steps=9)).differences(yaml.safe_load(Tiny().to_yaml()))
        ['run.max_steps was 100 and is 9']
        """
        old, new = dict(_leaves(earlier)), dict(_leaves(self.model_dump(mode="json")))
        skipped = {f"run.{name}" for name in NOT_IN_HASH}
        return [
            f"{name} was {_shown(old.get(name, 'not set'))} and is {_shown(new.get(name, 'not set'))}"
            for name in dict.fromkeys((*new, *old))
            if name not in skipped and old.get(name, MISSING) != new.get(name, MISSING)
        ]


MISSING = object()
"""Stands for the value of a field that only the other one of two configs has."""


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every field that is no section."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


Config = TypeVar("Config", bound=RunnableConfig)


def load(
    kind: type[Config],
    path: str | Path | None,
    flags: list[str] | None = None,
    below: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: {},
) -> Config:
    """Reads a config from a YAML file (None: only defaults) and dotted flags, which override the file.

    Args:
        kind: class of the config.
        path: a YAML file, the name of a packaged recipe, or None.
        flags: the command line.
        below: a function that gets the values of file and flags and returns values for fields that they do not set.

    Raises:
        UsageError: the file cannot be read, a name is unknown, or a value is not allowed.
    """
    given = _merge(read_recipe(path, "sections such as model and data", packaged=True), parse_flags(flags or [], kind))
    try:
        return kind.model_validate(_merge(below(given), given))
    except ValidationError as error:
        raise UsageError(_sentence(error, kind)) from None


def field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted name of every field, sections included. The items of a list have none.

    >>> class Tiny(RunnableConfig):
    ...     optim: AdamConfig = AdamConfig()
    >>> field_names(Tiny)[:3]
    ['optim', 'optim.learning_rate', 'optim.weight_decay']
    """
    names = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        if get_origin(field.annotation) is not list:
            for section in _models_in(field.annotation):
                names += field_names(section, f"{prefix}{name}.")
    return names


def parse_flags(flags: list[str], kind: type[BaseModel]) -> dict[str, Any]:
    """Return the values that dotted flags give, as nested dicts. An unknown flag is a :class:`UsageError`."""
    valid, command = field_names(kind), kind.__name__.removesuffix("Config").lower()
    for flag, following in zip(flags, [*flags, ""][1:], strict=True):
        name, equals, value = flag[2:].partition("=")
        _refuse_section(name, value if equals else following, kind) if flag.startswith("--") else None
        if flag.startswith("--") and name not in (*valid, "help", "help-all"):
            hint = _nearest(name, valid) or f"; kernel-coder {command} --help-all lists the flags"
            raise UsageError(f"unknown flag --{name}{hint}")
    flags = ["--help" if flag == "--help-all" else flag for flag in flags]
    return flag_values(kind, flags, f"kernel-coder {command} [--config FILE] [--resume [PATH]]")


def _refuse_section(name: str, value: str, kind: type[BaseModel]) -> None:
    """Raises UsageError for a flag such as ``--model nano``, which gives text to a whole section."""
    field = kind.model_fields.get(name)
    sections = [] if field is None or get_origin(field.annotation) is list else _models_in(field.annotation)
    if not sections or value.startswith("{") or value == "none":
        return
    own = field_names(sections[0], f"{name}.")
    meant = next((one for one in own if one.rpartition(".")[2] in ("name_or_path", "path", "device")), own[0])
    meant = f"{meant} {value}".strip()
    raise UsageError(f"--{name} is a section, whose fields are flags; did you mean --{meant}?")


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models that a field's type names, for example that of ``Section | None`` or
    ``list[Section]``."""
    return [
        kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


ABBREVIATIONS = {
    "lr": "learning_rate",
    "bs": "per_device_train_batch_size",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "steps": "max_steps",
    "max_tokens": "max_completion_length",
    "max_new_tokens": "max_completion_length",
    "group_size": "num_generations",
    "output": "output_dir",
    "model": "name_or_path",
    "tasks": "path",
    "dataset": "path",
}
"""Names that other programs use for a field, by the last part of the field's name here."""


def _nearest(name: str, valid: list[str]) -> str:
    """Return ``; did you mean ...?``, found by the whole dotted name first and by its last part second."""
    section, _, leaf = name.rpartition(".")
    meant = [option for option in valid if option.rpartition(".")[2] == ABBREVIATIONS.get(leaf)]
    close = sorted(meant, key=lambda option: not option.startswith(f"{section}."))[:1]
    close = close or difflib.get_close_matches(name, valid, n=1, cutoff=0.75)
    if not close:
        leaves = {option.rpartition(".")[2]: option for option in valid}
        close = [leaves[found] for found in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6)]
    return f"; did you mean {close[0]}?" if close else ""


def _sentence(error: ValidationError, kind: type[BaseModel]) -> str:
    """Return the error as one sentence that names the field."""
    errors = error.errors()
    # A misspelt required name is reported twice, as unknown and as missing. The unknown name is the one to correct.
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        field = kind.model_fields.get(str(first["loc"][0]))
        items = _models_in(field.annotation) if field is not None and get_origin(field.annotation) is list else []
        beside = [f"{first['loc'][0]}.{first['loc'][1]}.{leaf}" for item in items for leaf in item.model_fields]
        return f"unknown key {name} in the config{_nearest(name, field_names(kind) + beside)}"
    return f"{name}: {rule(first)}" if name else rule(first)
