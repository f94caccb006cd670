"""Values for a pydantic model, from a YAML file and from dotted flags. Used by `train`, `sft` and `evaluate`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError

from kernel_coder.run.flags import UsageError


def read_recipe(path: str | Path | None, such_as: str) -> dict[str, Any]:
    """The mapping that a YAML file holds; an empty one if ``path`` is None.

    Args:
        path: the file.
        such_as: what the file should hold, for the error message.

    Raises:
        UsageError: the file does not exist, is not YAML, or holds something else than a mapping.
    """
    if path is None:
        return {}
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
    return values


def flag_values(model: type[BaseModel], flags: list[str], program: str, **settings: Any) -> dict[str, Any]:
    """The values of dotted flags, with sections as nested dicts.

    Args:
        model: has a field for every flag.
        flags: the command line.
        program: the command's usage, for ``--help``.
        settings: further arguments of pydantic-settings' ``CliSettingsSource``, without their prefix ``cli_``.

    Raises:
        UsageError: a value cannot be parsed.
    """
    given = {f"cli_{name}": value for name, value in settings.items()}
    try:
        source = CliSettingsSource[Any](
            _as_settings(model),
            cli_parse_args=flags,
            cli_exit_on_error=False,
            cli_prog_name=program,
            cli_hide_none_type=True,
            **given,
        )
    except SettingsError as error:
        raise UsageError(str(error).removeprefix("error parsing CLI: ")) from None
    return source()


@cache
def _as_settings(model: type[BaseModel]) -> type[BaseSettings]:
    """A settings class with the model's fields, which pydantic-settings' command-line parser requires."""
    return type(model.__name__, (BaseSettings, model), {"__doc__": model.__doc__, "__module__": model.__module__})
