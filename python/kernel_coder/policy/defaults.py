"""A model's default settings: prompt template, task set, token limit and temperature, in a file of the model's folder.

``train`` and ``sft`` write the file beside the weights. ``evaluate``, ``refine``, ``data collect`` and ``data distill``
use its values unless a flag or a recipe sets others. The temperature is for the first two only: training data should
vary more.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernel_coder import models
from kernel_coder.run.errors import UsageError
from kernel_coder.run.flags import rule

FILE = "kernel-coder.json"
"""Name of the file in a model's folder."""

TEMPLATES = ("prompt_template", "feedback_template")
"""Values that may be a template file in the model's folder."""

PACKAGED_FOLDERS = {"nano": Path(models.__file__).parent / "kernel-coder-nano"}
"""Folders of the packaged models that have one, by name."""


class ModelDefaults(BaseModel):
    """The values; None: the model has no such default. Fields of later versions are ignored."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    prompt_template: str | None = None
    feedback_template: str | None = None
    context_turns: int | None = Field(default=None, ge=1)
    earlier_reasoning: Literal["keep", "summary", "drop"] | None = None
    max_new_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    tasks: str | None = None
    backend: Literal["triton", "cuda", "cpp", "torch"] | None = None
    chat_template: Literal["plain"] | None = None
    one_shot: bool | None = None


def defaults_of(model: str) -> dict[str, Any]:
    """Return the values that a model's folder states, by name; empty for a hub id and for a folder without the file.

    Raises:
        UsageError: the file cannot be read.

    >>> defaults_of("nano")["prompt_template"], defaults_of("owner/name")
    ('nano', {})
    """
    folder = PACKAGED_FOLDERS.get(model, Path(model).expanduser())
    file = folder / FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        found = ModelDefaults.model_validate(values).model_dump(exclude_none=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"{part}: " for part in first["loc"])
        raise UsageError(f"{file} cannot be read: {field}{rule(first)}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    for name in TEMPLATES:
        if (folder / str(found.get(name))).is_file():
            found[name] = str(folder / found[name])
    return found


def write_defaults(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes the file. Templates that are files of their own are copied into the folder.

    Args:
        folder: the model's folder, which exists.
        values: by the names of :class:`ModelDefaults`; values of None are left out.
    """
    kept = {name: value for name, value in values.items() if value is not None}
    for name in TEMPLATES:
        source = Path(str(kept.get(name, "")))
        if source.suffix == ".jinja" and source.is_file():
            shutil.copyfile(source, folder / source.name)
            kept[name] = source.name
    ModelDefaults.model_validate(kept)
    (folder / FILE).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def task_path(path: str | None) -> str | None:
    """Return a task set as it can be found from every folder: the absolute path of a file, any other name unchanged.

    >>> task_path("packaged:pointwise")
    'packaged:pointwise'
    """
    return str(Path(path).resolve()) if path is not None and Path(path).exists() else path
