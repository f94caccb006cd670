"""The short help of a command, and its version."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kernel_coder import __version__
from kernel_coder.prompts import feedback_template_names, template_names
from kernel_coder.run.flags import flag_of
from kernel_coder.run.recipe import recipe_names
from kernel_coder.tasks.sources import PACKAGED, PACKAGED_TABLES

PACKAGED_MODELS = ("nano", "tiny")
"""Models that come with Kernel Coder: one that writes simple Triton kernels, and one with random weights for tests."""


def show_help(
    arguments: Sequence[str], usage: str, model: type[BaseModel], common: Sequence[str], *, recipes: bool = False
) -> bool:
    """Prints the output of ``--version``, ``-h`` or ``--help``. Returns False if the arguments hold none of them.

    Args:
        arguments: the command line.
        usage: the command and its positional arguments.
        model: its fields are the flags.
        common: the fields that the short help shows, those of a section with a dot. The command itself implements
            ``--help-all``.
        recipes: whether ``--config`` takes the name of a packaged recipe.
    """
    if "--version" in arguments:
        print(f"kernel-coder {__version__}")
        return True
    if not {"-h", "--help"} & set(arguments):
        return False
    flags = {name: f"--{name}" if "." in name else flag_of(name) for name in common}
    width = max(map(len, flags.values()))
    lines = [f"usage: {usage} [flags]", "", "common flags:"]
    for name, flag in flags.items():
        field = field_of(model, name)
        default = "" if field.is_required() or field.default is None else f" (default {field.default})"
        lines.append(f"  {flag:{width}}  {field.description or name}{default}")
    lines += [
        "",
        *([f"packaged recipes (--config): {', '.join(recipe_names())}"] if recipes else []),
        f"packaged models: {', '.join(PACKAGED_MODELS)}",
        f"prompt templates: {', '.join(template_names())}",
        f"feedback templates: {', '.join(feedback_template_names())}",
        f"packaged task sets: {', '.join((PACKAGED, *(f'{PACKAGED}:{name}' for name in PACKAGED_TABLES)))}",
        "",
        "A packaged or trained model brings its own prompt template, task set, token limit and temperature.",
        "--help-all lists all flags; --version prints the version.",
    ]
    print("\n".join(lines))
    return True


def field_of(model: type[BaseModel], name: str) -> FieldInfo:
    """Return the field with a dotted name.

    >>> from kernel_coder.evaluate.config import EvaluateConfig
    >>> field_of(EvaluateConfig, "judge.seed").description is not None
    True
    """
    first, _, rest = name.partition(".")
    field = model.model_fields[first]
    if not rest:
        return field
    kinds = (field.annotation, *get_args(field.annotation))
    return field_of(next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), rest)


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean X?`` for a misspelt name, or nothing.

    >>> suggestion("nanoo", ["nano", "tiny"]), suggestion("gpt2", ["nano", "tiny"])
    ('; did you mean nano?', '')
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
