"""Command-line flags made from the fields of a pydantic model, and mistakes reported in one sentence."""

from __future__ import annotations

import argparse
import difflib
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from kernel_coder.run.errors import UsageError as UsageError  # the commands import both from here

Model = TypeVar("Model", bound=BaseModel)


def end(sentence: object, code: int) -> int:
    """Prints on stderr, in one line, why a command ends, and returns its exit code."""
    print(f"error: {' '.join(str(sentence).split())}", file=sys.stderr)
    return code


class FlagParser(argparse.ArgumentParser):
    """An argparse parser without abbreviations. A mistake is a :class:`UsageError` that suggests the nearest flag."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parses the arguments; None stands for those of the process."""
        given = sys.argv[1:] if arguments is None else arguments
        options, unknown = self.parse_known_args([_dashed(argument) for argument in given])
        if unknown:
            flag = unknown[0].partition("=")[0]
            close = difflib.get_close_matches(flag, self._flags(options), n=1)
            raise UsageError(f"unknown argument {flag}{f'; did you mean {close[0]}?' if close else ''}")
        return options

    def _flags(self, options: argparse.Namespace) -> list[str]:
        """Return the flags of this parser and of the chosen subcommand."""
        chosen = vars(options).values()
        commands = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        own = [parser for choices in commands for name, parser in choices.items() if name in chosen]
        return [flag for parser in (self, *own) for flag in parser._option_string_actions]


def _dashed(argument: str) -> str:
    """Turns ``--timed_calls=7`` into ``--timed-calls=7``, since users copy names from a config file."""
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument


def flag_of(name: str) -> str:
    """Return the flag of a field.

    >>> flag_of("timed_calls")
    '--timed-calls'
    """
    return f"--{name.replace('_', '-')}"


def add_flags(parser: argparse._ActionsContainer, model: type[BaseModel]) -> None:
    """Adds a flag for each field of the model, with the field's description and default as its help.

    The flag of a boolean field takes ``true``, ``false`` or no value (true), and there is a second flag,
    ``--no-<name>``, for false. A field that may be None takes ``none``. A list takes its items separated by commas.
    """
    for name, field in model.model_fields.items():
        kinds = _kinds(field)
        shown = _shown(field.get_default(call_default_factory=True))
        text = f"{field.description or name.replace('_', ' ')} (default {shown})".replace("%", "%%")
        settings: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if bool in kinds:
            off = f"--no-{name.replace('_', '-')}"
            parser.add_argument(flag_of(name), nargs="?", const="true", metavar="true|false", **settings)
            parser.add_argument(off, action="store_const", const="false", **{**settings, "help": argparse.SUPPRESS})
        else:
            metavar = {int: "N", float: "X"}.get(next((kind for kind in kinds if kind in (int, float)), str), "TEXT")
            parser.add_argument(flag_of(name), metavar=metavar, **settings)


def read_flags(options: argparse.Namespace, model: type[Model]) -> Model:
    """Return the model with the values of the flags. A value that is not allowed is a UsageError that names the flag.

    >>> class Tries(BaseModel):
    ...     count: int = 3
    >>> parser = FlagParser()
    >>> add_flags(parser, Tries)
    >>> read_flags(parser.parse(["--count", "5"]), Tries)
    Tries(count=5)
    >>> read_flags(parser.parse(["--count", "five"]), Tries)
    Traceback (most recent call last):
    kernel_coder.run.errors.UsageError: --count: input should be a valid integer, unable to parse string as an \
integer; got 'five'
    """
    given = {name: _value(field, vars(options)[name]) for name, field in model.model_fields.items() if name in options}
    return validated(model, given)


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Return the model with these values; a value that is not allowed is a :class:`UsageError`."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        names = [part for part in first["loc"] if isinstance(part, str)]  # the other parts are positions in a list
        flag = "" if first["type"] == "value_error" else f"{flag_of('.'.join(names))}: "
        raise UsageError(f"{flag}{rule(first)}") from None


def rule(error: ErrorDetails) -> str:
    """Return the rule that was broken, without the field's name. If it is one of pydantic's own rules, also the
    value."""
    message = error["msg"].removeprefix("Value error, ")
    return message if error["type"] == "value_error" else f"{message[0].lower()}{message[1:]}; got {error['input']!r}"


def _kinds(field: FieldInfo) -> set[Any]:
    """Return the types that a field's value may have, without their type parameters."""
    hint = field.annotation
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return {typing.get_origin(kind) or kind for kind in (typing.get_args(hint) if union else (hint,))}


def _value(field: FieldInfo, text: str) -> Any:
    kinds = _kinds(field)
    if type(None) in kinds and text.lower() == "none":
        return None
    return [part.strip() for part in text.split(",") if part.strip()] if kinds & {tuple, list} else text


def _shown(default: Any) -> str:
    if default is PydanticUndefined:
        return "none"
    return ",".join(map(str, default)) if isinstance(default, (tuple, list)) else str(default).lower()
