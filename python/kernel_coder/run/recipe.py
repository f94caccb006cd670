"""What `train`, `sft` and `evaluate` share: the values of a YAML file, and those of flags, for one pydantic model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError

from kernel_coder.run.flags import UsageError


def read_recipe(path: str | Path | None, such_as: str) -> dict[str, Any]:
    """What a YAML file holds (None: nothing); UsageError with the file's name. `such_as`: what it should hold."""
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
    """What the flags give, sections as dicts; UsageError for a value that cannot be read. The names must be known.

    `settings` are pydantic-settings' own, without their ``cli_``.
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
    """The same fields, seen by the command-line parser."""
    return type(model.__name__, (BaseSettings, model), {"__doc__": model.__doc__, "__module__": model.__module__})
