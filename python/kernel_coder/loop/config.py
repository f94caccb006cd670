"""The config of a loop: one YAML file with the sections train, sft and evaluate, and the filter between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from kernel_coder.evaluate.config import EvaluateConfig
from kernel_coder.run.config import RunnableConfig, Section, load
from kernel_coder.run.flags import UsageError, rule
from kernel_coder.sft.config import SftConfig
from kernel_coder.train.config import TrainConfig

FIXED_FIELDS = {
    "train": ("model.name_or_path", "run.output_dir", "run.overwrite_output_dir", "run.seed"),
    "sft": ("model.name_or_path", "data.path", "run.output_dir", "run.overwrite_output_dir"),
    "evaluate": ("model", "output"),
}
"""Fields of the inner configs that the loop sets itself, by section."""


class KeepConfig(Section):
    """Which correct answers the supervised training learns."""

    by: Literal["concise", "fast", "random", "longest", "all"] = Field(
        default="concise",
        description="order in which a task's answers are kept: concise (shortest reasoning first, as ConCuR finds "
        "best), fast (largest speedup first), random, longest (reasoning), or all of them",
    )
    per_task: int = Field(default=4, ge=1, description="highest number of different answers to one task; not for all")
    min_speedup: float | None = Field(
        default=None, gt=0, description="keep only answers with at least this speedup; none: untimed ones too"
    )
    max_thinking: int | None = Field(
        default=None, ge=0, description="keep only answers with reasoning of at most this many characters; none: any"
    )


class LoopRunConfig(Section):
    """The number of rounds, and the folder of their results."""

    output_dir: str = Field(default="runs/loop", description="folder for the rounds and the report")
    rounds: int = Field(default=3, ge=1, description="number of rounds")
    seed: int = Field(default=42, ge=0, description="seed; round r trains with seed + r")
    library: str | None = Field(default=None, description="add every round's correct kernels to this library")


class LoopConfig(RunnableConfig):
    """The config of a loop."""

    model: str = Field(default="nano", description="the starting policy: a hub id, a local folder, or nano")
    train: dict[str, Any] = Field(default={}, description="sections of a recipe for kernel-coder train")
    sft: dict[str, Any] = Field(default={}, description="sections of a recipe for kernel-coder sft")
    evaluate: dict[str, Any] = Field(default={}, description="fields of kernel-coder evaluate, for held-out tasks")
    keep: KeepConfig = KeepConfig()
    run: LoopRunConfig = LoopRunConfig()  # type: ignore[assignment]  # a loop has no steps and no checkpoints

    def train_config(self, policy: str, folder: Path, number: int) -> TrainConfig:
        """Return the config of a round's reinforcement learning."""
        own = {"output_dir": str(folder), "overwrite_output_dir": True, "seed": self.run.seed + number}
        return TrainConfig.model_validate(_with(self.train, {"model": {"name_or_path": policy}, "run": own}))

    def sft_config(self, data: Path, folder: Path) -> SftConfig:
        """Return the config of a round's supervised training, which begins with the starting policy."""
        own = {"output_dir": str(folder), "overwrite_output_dir": True}
        values: dict[str, dict[str, Any]] = {
            "model": {"name_or_path": self.model},
            "data": {"path": str(data)},
            "run": own,
        }
        return SftConfig.model_validate(_with(self.sft, values))

    def evaluate_config(self, policy: str, folder: Path) -> EvaluateConfig:
        """Return the config of the evaluation of a policy."""
        return EvaluateConfig.model_validate({**self.evaluate, "model": policy, "output": str(folder)})


def _with(values: dict[str, Any], changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return values | {section: {**(values.get(section) or {}), **own} for section, own in changes.items()}


def load_config(path: str | Path | None, flags: list[str] | None = None) -> LoopConfig:
    """Return the config of a loop from a YAML file (None: only defaults) and flags such as ``--run.rounds 2``.

    Raises:
        UsageError: the file cannot be read, or a value of the loop or of an inner config is not allowed.
    """
    config = load(LoopConfig, path, flags)
    for section, names in FIXED_FIELDS.items():
        for name in names:
            value: Any = getattr(config, section)
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                raise UsageError(f"{section}.{name} is set by the loop itself; leave it out")
    nowhere = Path("none")
    try:
        config.train_config(config.model, nowhere, 0)
        config.sft_config(nowhere, nowhere)
        config.evaluate_config(config.model, nowhere)
    except ValidationError as error:
        first = error.errors()[0]
        section = error.title.removesuffix("Config").lower()
        name = ".".join([section, *map(str, first["loc"])])
        raise UsageError(f"{name}: {rule(first)}") from None
    return config
