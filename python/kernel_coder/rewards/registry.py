"""Finds reward functions by name and checks the parameters that a config gives them."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from kernel_coder.rewards.errors import RewardError

RewardFunction = Callable[..., Any]
"""``f(prompts, completions, **columns)``, plain or ``async``; returns a number or None for each completion."""

Function = TypeVar("Function", bound=RewardFunction)

COLUMNS = frozenset(
    {
        *("prompts", "completions", "task", "solution", "reference"),
        *("completion_ids", "finish_reason", "step", "verdict"),
        *("trainer_state", "log_extra", "log_metric", "environments"),  # TRL passes these besides the columns
    }
)
"""Names that a training loop passes as columns. They cannot be parameters in a config."""


@dataclass(frozen=True, slots=True)
class _Registered:
    function: RewardFunction
    check: Callable[..., None] | None


_REGISTRY: dict[str, _Registered] = {}


def register_reward(name: str, *, check: Callable[..., None] | None = None) -> Callable[[Function], Function]:
    """Return a decorator that registers a reward function under a name for configs.

    Args:
        name: a name that is not registered yet.
        check: called with all parameters by keyword when the function is loaded; raises :class:`RewardError` for values
            that are not valid together.

    >>> @register_reward("shortness")
    ... def shortness(prompts, completions, limit: int = 100, **columns):
    ...     return [float(len(text) <= limit) for text in completions]
    >>> load_reward("shortness", {"limit": 2})(["?", "?"], ["ab", "abc"])
    [1.0, 0.0]
    >>> del _REGISTRY["shortness"]
    """

    def register(function: Function) -> Function:
        if name in _REGISTRY:
            raise RewardError(f"a reward named {name} is registered already")
        if ":" in name:
            raise RewardError(f"a reward's name must not hold a colon, which separates module:function; got {name}")
        _REGISTRY[name] = _Registered(function, check)
        return function

    return register


def reward_names() -> list[str]:
    """Return the registered names.

    >>> reward_names()[:5]
    ['compiles', 'correct', 'format', 'general', 'kernel_share']
    """
    return sorted(_REGISTRY)


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function with its parameters. It is called like the function itself.

    The call passes only columns that the function names, or all if it takes ``**columns``. So a function need not
    accept columns that it does not use.
    """

    name: str
    function: RewardFunction
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def __name__(self) -> str:  # TRL logs a reward under this
        return self.name

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        """Return the function's result.

        Raises:
            RewardError: a column that the function needs is missing.
        """
        return self._call(prompts, completions, columns)

    def _call(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> Any:
        parameters = inspect.signature(self.function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        given = {name: value for name, value in columns.items() if takes_all or name in parameters}
        given = {**given, **self.params}
        for name, parameter in parameters.items():
            needed = parameter.default is parameter.empty and parameter.kind in _BY_KEYWORD
            if needed and name not in given and name not in ("prompts", "completions"):
                have = ", ".join(sorted(columns)) or "none"
                raise RewardError(f"reward {self.name} needs the column {name}; the columns are {have}")
        return self.function(prompts=prompts, completions=completions, **given)


class AsyncReward(Reward):
    """A :class:`Reward` around an ``async`` function. Its call is ``async`` as well, since TRL distinguishes the two
    kinds by their ``__call__``."""

    async def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        """Return the function's result, awaited. It raises what :meth:`Reward.__call__` raises."""
        return await self._call(prompts, completions, columns)


def load_reward(name: str, params: Mapping[str, Any] | None = None) -> Reward:
    """Return the reward with this name and these parameters.

    Args:
        name: a registered name (``format``, ``similarity``), ``package.module:function`` or
            ``path/to/file.py:function``.
        params: values for the function's named arguments that are not columns. They are checked against its signature
            and type hints now, before any rollout.

    Raises:
        RewardError: there is no such reward, the function has no such parameter, or a value has the wrong type.

    >>> load_reward("similarity", {"higth": 0.8})
    Traceback (most recent call last):
    kernel_coder.rewards.errors.RewardError: reward similarity has no parameter higth (did you mean high?); it has \
autojunk, high, low, scale
    """
    registered = _find(name)
    function = registered.function
    call = getattr(type(function), "__call__", None)  # noqa: B004  # an object may have an async __call__
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    kind = AsyncReward if is_async else Reward
    return kind(name, function, _checked_params(name, registered, dict(params or {})))


_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _find(name: str) -> _Registered:
    if name in _REGISTRY:
        return _REGISTRY[name]
    module_name, colon, attribute = name.rpartition(":")
    if not colon:
        raise RewardError(
            f"unknown reward {name}{_nearest(name, reward_names())}; known are {', '.join(reward_names())}, "
            "and any function as package.module:function"
        )
    function: Any = _module(module_name, name)
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise RewardError(f"reward {name}: {module_name} has no function {attribute}")
    return _Registered(function, None)


@contextlib.contextmanager
def _current_folder_last() -> Iterator[None]:
    """Inside this context, modules are also found in the current folder, after all others, so that a file there cannot
    replace an installed package such as torch."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def _module(name: str, reward: str) -> ModuleType:
    try:
        if not name.endswith(".py"):
            with _current_folder_last():
                return importlib.import_module(name)
        path = Path(name).expanduser()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise FileNotFoundError(f"the file {name} does not exist")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception as error:  # a user's module can raise anything while it is imported
        raise RewardError(f"reward {reward} cannot be imported: {type(error).__name__}: {error}") from error


def _checked_params(name: str, registered: _Registered, params: dict[str, Any]) -> dict[str, Any]:
    function = registered.function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RewardError(f"reward {name} has no signature that can be read: {error}") from error
    allowed = {
        key: parameter
        for key, parameter in signature.parameters.items()
        if parameter.kind in _BY_KEYWORD and key not in COLUMNS
    }
    for key in params:
        if key not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise RewardError(f"reward {name} has no parameter {key}{_nearest(key, allowed)}; it has {known}")
    hints = _hints(function)
    params = {key: _converted(name, key, value, hints.get(key)) for key, value in params.items()}
    if registered.check is not None:
        defaults = {key: p.default for key, p in allowed.items() if p.default is not p.empty}
        try:
            registered.check(**{**defaults, **params})
        except RewardError as error:
            raise RewardError(f"reward {name}: {error}") from error
    return params


def _converted(reward: str, name: str, value: Any, hint: Any) -> Any:
    """Return the value converted to the annotated type; unchanged if there is no annotation that pydantic
    understands."""
    if hint is None:
        return value
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise RewardError(
            f"parameter {name} of reward {reward}: {message[0].lower()}{message[1:]}; got {value!r}"
        ) from error
    except PydanticUserError:
        return value


def _hints(function: RewardFunction) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # names that only type checkers know; callable objects
        return {}


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
