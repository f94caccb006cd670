"""Reads values for a pydantic model from a YAML file and from dotted flags, for `train`, `sft` and `evaluate`."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError

from kernel_coder.run.flags import UsageError

TEMPLATE = ".jinja"
"""Suffix of prompt and chat templates."""


def recipe_folder() -> Path:
    """Return the folder of the packaged recipes: ``recipes`` of an installed package, ``configs`` of a source tree."""
    package = Path(__file__).parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "configs"


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes, which ``--config`` takes.

    >>> {"nano", "tiny", "tiny-sft"} <= set(recipe_names())
    True
    """
    return sorted(file.stem for file in recipe_folder().glob("*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """Return the file that ``--config`` means: a path, or the name of a packaged recipe.

    Raises:
        UsageError: there is neither such a file nor such a recipe.

    >>> find_recipe("tiny").name
    'tiny.yaml'
    """
    path = Path(name)
    if path.exists() and not (path.is_dir() and path.name in recipe_names()):
        return path
    known = recipe_names()
    if str(name) in known:
        return recipe_folder() / f"{name}.yaml"
    close = difflib.get_close_matches(path.stem, known, n=1, cutoff=0.7)
    hint = f"; did you mean the packaged recipe {close[0]}?" if close else f"; packaged recipes: {', '.join(known)}"
    raise UsageError(f"config file {name} does not exist{hint}")


def read_recipe(path: str | Path | None, such_as: str, *, packaged: bool = False) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; an empty one if ``path`` is None.

    The path of a template that does not exist from the current folder is looked up beside the recipe, then among the
    packaged recipes.

    Args:
        path: the file.
        such_as: the expected content of the file, for the error message.
        packaged: ``path`` may also be the name of a packaged recipe.

    Raises:
        UsageError: the file does not exist, is not YAML, or holds something else than a mapping.
    """
    if path is None:
        return {}
    path = find_recipe(path) if packaged else Path(path)
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise UsageError(f"config file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"config file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UsageError(f"config file {path} must hold {such_as}; got a {type(values).__name__}")
    return {name: _with_found_templates(value, path.parent) for name, value in values.items()}


def _with_found_templates(value: Any, folder: Path) -> Any:
    """Return the value with the paths of templates replaced by existing ones: in the current folder, beside the recipe,
    or packaged."""
    if isinstance(value, dict):
        return {name: _with_found_templates(one, folder) for name, one in value.items()}
    if not (isinstance(value, str) and value.endswith(TEMPLATE)) or Path(value).exists():
        return value
    near = (folder / value, folder / Path(value).name, recipe_folder() / Path(value).name)
    return next((str(file) for file in near if file.is_file()), value)


def flag_values(model: type[BaseModel], flags: list[str], program: str, **settings: Any) -> dict[str, Any]:
    """Return the values of dotted flags, with sections as nested dicts.

    Args:
        model: has a field for every flag.
        flags: the command line.
        program: the command's usage, for ``--help``.
        settings: further arguments of pydantic-settings' ``CliSettingsSource``, without their prefix ``cli_``.

    Raises:
        UsageError: a value cannot be parsed.
    """
    try:
        return _parser_of(model, program, tuple(settings.items()))(args=flags)()
    except SettingsError as error:
        raise UsageError(str(error).removeprefix("error parsing CLI: ")) from None


@cache
def _parser_of(model: type[BaseModel], program: str, settings: tuple[tuple[str, Any], ...]) -> CliSettingsSource[Any]:
    """Return the command-line parser of a model. It takes 60 ms to build, so it is built once."""
    return CliSettingsSource[Any](
        _as_settings(model),
        cli_exit_on_error=False,
        cli_prog_name=program,
        cli_hide_none_type=True,
        **{f"cli_{name}": value for name, value in settings},
    )


@cache
def _as_settings(model: type[BaseModel]) -> type[BaseSettings]:
    """Return a settings class with the model's fields, which pydantic-settings' command-line parser requires."""
    return type(model.__name__, (BaseSettings, model), {"__doc__": model.__doc__, "__module__": model.__module__})
