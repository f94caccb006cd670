"""What every command shares: mistakes in one sentence, and flags from the fields of a pydantic model."""

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

Model = TypeVar("Model", bound=BaseModel)


class UsageError(ValueError):
    """Something the user wrote cannot be done; the message is one sentence that says what and how to mend it."""


def end(sentence: object, code: int) -> int:
    """Says in one line on stderr why a command ends, and gives its exit code back."""
    print(f"error: {' '.join(str(sentence).split())}", file=sys.stderr)
    return code


class FlagParser(argparse.ArgumentParser):
    """argparse without abbreviations, whose mistakes are :class:`UsageError` with the nearest flag in it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        given = sys.argv[1:] if arguments is None else arguments
        options, unknown = self.parse_known_args([_dashed(argument) for argument in given])
        if unknown:
            flag = unknown[0].partition("=")[0]
            close = difflib.get_close_matches(flag, self._flags(options), n=1)
            raise UsageError(f"unknown argument {flag}{f'; did you mean {close[0]}?' if close else ''}")
        return options

    def _flags(self, options: argparse.Namespace) -> list[str]:
        """Its own flags and those of the command that was chosen."""
        chosen = vars(options).values()
        commands = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        own = [parser for choices in commands for name, parser in choices.items() if name in chosen]
        return [flag for parser in (self, *own) for flag in parser._option_string_actions]


def _dashed(argument: str) -> str:
    """``--timed_calls=7`` is ``--timed-calls=7``: people copy names out of a configuration."""
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument


def flag_of(name: str) -> str:
    """
    >>> flag_of("timed_calls")
    '--timed-calls'
    """
    return f"--{name.replace('_', '-')}"


def add_flags(parser: argparse._ActionsContainer, model: type[BaseModel]) -> None:
    """A flag for each field of the model, with its description and default.

    A field that is true or false takes ``true``, ``false`` or nothing, and has a second flag with ``no-`` before the
    name; one that may be None takes ``none``; one of several values takes them with commas in between.
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
    """The model that the flags describe; UsageError naming the flag with a value that it cannot have.

    >>> class Tries(BaseModel):
    ...     count: int = 3
    >>> parser = FlagParser()
    >>> add_flags(parser, Tries)
    >>> read_flags(parser.parse(["--count", "5"]), Tries)
    Tries(count=5)
    >>> read_flags(parser.parse(["--count", "five"]), Tries)
    Traceback (most recent call last):
    kernel_coder.run.flags.UsageError: --count: input should be a valid integer, unable to parse string as an \
integer; got 'five'
    """
    given = {name: _value(field, vars(options)[name]) for name, field in model.model_fields.items() if name in options}
    return validated(model, given)


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """The model of these values, or a UsageError."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        names = [part for part in first["loc"] if isinstance(part, str)]  # the others are places in a list
        flag = "" if first["type"] == "value_error" else f"{flag_of('.'.join(names))}: "
        raise UsageError(f"{flag}{rule(first)}") from None


def rule(error: ErrorDetails) -> str:
    """What pydantic found wrong, without the field's name: the rule, and what came if pydantic made the rule."""
    message = error["msg"].removeprefix("Value error, ")
    return message if error["type"] == "value_error" else f"{message[0].lower()}{message[1:]}; got {error['input']!r}"


def _kinds(field: FieldInfo) -> set[Any]:
    """The types that a value may have, without their parameters."""
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
