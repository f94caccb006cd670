"""Makes a :class:`Task` from a row in KernelBook's or KernelBench's columns."""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kernel_coder.tasks.task import SOLUTION_CLASS, Task, classes, parse, reference_problem

Row = Mapping[str, Any]

_GENERATED = ("family", "level", "composition", "split", "seed", "verified")
"""Columns that :mod:`kernel_coder.data.build` adds."""


class BrokenRowError(ValueError):
    """A row cannot become a task; the message is one clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """A set of columns, and the function that makes a task from them."""

    name: str
    owner: str  # the project's name in messages
    required: tuple[str, ...]
    optional: tuple[str, ...]
    make: Callable[[Row, str], Task]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.required + self.optional


KERNELBOOK_METADATA = (
    "uuid", "repo_name", "module_name", "synthetic", "stars", "sha", "repo_link",
    "family", "level", "composition", "split", "thinking",  # in generated and distilled pairs
)  # fmt: skip


def kernelbook_task(row: Row, source: str) -> Task:
    """Makes a task from KernelBook's columns.

    The class in ``triton_code`` is called ``<entry_point>New``; it is renamed to ``ModelNew``, which prompts request
    (only the name, not attributes or strings). The id is ``<entry_point>/<uuid>``, with a hash of the source if a row
    has no uuid.
    """
    entry_point = _text(row, "entry_point")
    reference = _text(row, "python_code")
    solution = _optional_text(row, "triton_code")
    if problem := reference_problem(reference, entry_point):
        raise BrokenRowError(problem)
    if solution is not None:
        solution = _answer(solution, f"{entry_point}New")
    uuid = row_uuid(row)
    return Task(
        id=f"{entry_point}/{uuid if uuid is not None else _content_hash(reference)}",
        source=source,
        reference=reference,
        solution=solution,
        entry_point=entry_point,
        licence=_licence(row.get("licenses")),
        metadata=_rest(row, (*KERNELBOOK_METADATA, *_GENERATED)),
    )


def kernelbench_task(row: Row, source: str) -> Task:
    """Makes a task from KernelBench's columns. The id is ``level<level>/<name>``, as for a file of its repository.

    KernelBench is for evaluation only, which ``metadata["evaluation_only"]`` states.
    """
    reference = _text(row, "code")
    level = row.get("level")
    folder = f"level{level}" if level is not None else "kernelbench"
    name = _optional_text(row, "name") or _content_hash(reference)
    if problem := reference_problem(reference):
        raise BrokenRowError(problem)
    return Task(
        id=f"{folder}/{name}",
        source=source,
        reference=reference,
        licence=_licence(row.get("licenses")),
        metadata={**_rest(row, ("level", "name", "problem_id")), "evaluation_only": True},
    )


ROW_FORMATS: Mapping[str, RowFormat] = {
    "kernelbook": RowFormat(
        name="kernelbook",
        owner="KernelBook",
        required=("entry_point", "python_code"),
        optional=(
            "triton_code", "licenses", *KERNELBOOK_METADATA, *_GENERATED,
        ),
        make=kernelbook_task,
    ),
    "kernelbench": RowFormat(
        name="kernelbench",
        owner="KernelBench",
        required=("code",),
        optional=("level", "name", "problem_id", "licenses"),
        make=kernelbench_task,
    ),
}  # fmt: skip


def row_format(name: str, columns: Collection[str], source: str) -> RowFormat:
    """Return the format with this name, or for ``auto`` the one whose columns exist.

    Raises:
        ValueError: a required column is missing, or ``auto`` finds no format.

    >>> row_format("auto", ["code", "level"], "x.jsonl").name
    'kernelbench'
    """
    if name == "auto":
        for candidate in ROW_FORMATS.values():
            if all(column in columns for column in candidate.required):
                return candidate
        known = "; ".join(f"{', '.join(fmt.required)} ({fmt.owner})" for fmt in ROW_FORMATS.values())
        raise ValueError(f"{source} has neither known set of columns: {known}; it has {', '.join(sorted(columns))}")
    chosen = ROW_FORMATS[name]
    missing = [column for column in chosen.required if column not in columns]
    if missing:
        raise ValueError(
            f"{source} has no column {' and no column '.join(missing)}, which {chosen.owner}'s format needs; "
            f"it has {', '.join(sorted(columns))}"
        )
    return chosen


def rename_class(source: str, old: str, new: str) -> str:
    """Return the source with the class ``old`` and its uses renamed to ``new``.

    Attributes (``nn.old``), strings and comments stay. Nothing changes if ``old`` is not a top-level class, if ``new``
    already is one, or if the source does not parse.

    >>> rename_class("class SumNew(nn.SumNew): 'SumNew'", "SumNew", "ModelNew")
    "class ModelNew(nn.SumNew): 'SumNew'"
    """
    tree = parse(source)
    if isinstance(tree, str) or old not in classes(tree) or new in classes(tree):
        return source
    return _renamed(source, tree, old, new)


def _renamed(source: str, tree: ast.Module, old: str, new: str) -> str:
    lines = source.encode().splitlines(keepends=True)  # as bytes, because ast counts columns in UTF-8
    found: list[tuple[int, int]] = []
    named = [number for number, line in enumerate(lines, start=1) if old.encode() in line]
    # Walking the whole tree takes as long as parsing, so only statements that contain the name are walked.
    holding = [
        statement for statement in tree.body if any(_first_line(statement) <= n <= _last_line(statement) for n in named)
    ]
    for node in chain.from_iterable(map(ast.walk, holding)):
        if isinstance(node, ast.Name) and node.id == old:
            found.append((node.lineno - 1, node.col_offset))
        elif isinstance(node, ast.ClassDef) and node.name == old:
            name = re.compile(rb"class\s+").match(lines[node.lineno - 1], node.col_offset)
            if name is None:  # a backslash and a line end between the keyword and the name
                return source
            found.append((node.lineno - 1, name.end()))
    for line, column in sorted(found, reverse=True):
        lines[line] = lines[line][:column] + new.encode() + lines[line][column + len(old.encode()) :]
    return b"".join(lines).decode()


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def row_uuid(row: Row) -> str | None:
    """Return the row's uuid as text. A table with missing uuids stores them as floats; their ``.0`` is dropped."""
    value = row.get("uuid")
    if isinstance(value, float):
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else value
    return None if value is None or value == "" else str(value)


def _answer(source: str, old: str) -> str:
    """Return the solution with its class renamed to ``ModelNew``. It is parsed only once, because tables can hold 100
    MB."""
    tree = parse(source)
    if isinstance(tree, str):
        raise BrokenRowError(f"the solution does not parse: {tree}")
    if SOLUTION_CLASS in classes(tree):
        return source
    if old not in classes(tree):
        raise BrokenRowError(f"the solution has no class {SOLUTION_CLASS} or {old}")
    return _renamed(source, tree, old, SOLUTION_CLASS)


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if value is None:
        raise BrokenRowError(f"{column} is missing")
    if not isinstance(value, str):
        raise BrokenRowError(f"{column} must be text, got {type(value).__name__}")
    if not value.strip():
        raise BrokenRowError(f"{column} is empty")
    return value


def _optional_text(row: Row, column: str) -> str | None:
    value = row.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str):
        raise BrokenRowError(f"{column} must be text, got {type(value).__name__}")
    return value if value.strip() else None


def _licence(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, Collection):
        return ", ".join(str(item) for item in value) or None
    raise BrokenRowError(f"licenses must be text or a list of texts, got {type(value).__name__}")


def _rest(row: Row, columns: tuple[str, ...]) -> dict[str, Any]:
    return {column: row[column] for column in columns if row.get(column) is not None}


def _content_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
