"""A task: one PyTorch module to rewrite."""

from __future__ import annotations

import ast
import gc
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BACKENDS = ("triton", "cuda", "cpp", "torch")
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16")

SOLUTION_CLASS = "ModelNew"
"""The class that every answer and every known solution defines; the reference's class can have any name."""

HELPERS = ("get_inputs", "get_init_inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One PyTorch module to rewrite.

    Attributes:
        id: permanent name. A row has the same id wherever it is loaded from, so it keeps its side of a split by id.
        source: origin, for people: ``packaged``, ``GPUMODE/KernelBook@1576375``, a file's name.
        reference: Python source with the class ``entry_point`` and the functions ``get_inputs`` (the arguments of
            ``forward``) and ``get_init_inputs`` (those of ``__init__``). This package never runs it.
        solution: Python source of a known answer with the class ``ModelNew``; None: not known.
        entry_point: name of the reference's class; KernelBook keeps the name from the module's repository.
        backend: language of the answer, one of :data:`BACKENDS`.
        precision: precision of reference and answer, one of :data:`PRECISIONS`.
        licence: licence of the reference, from its row; None: not stated.
        metadata: the row's other columns.

    Raises:
        ValueError: the id or the reference is empty, or backend or precision is unknown.

    >>> source = "class Model: ...\\ndef get_inputs(): ...\\ndef get_init_inputs(): ..."
    >>> Task(id="level1/1_Square", source="example", reference=source).entry_point
    'Model'
    """

    id: str
    source: str
    reference: str
    solution: str | None = None
    entry_point: str = "Model"
    backend: str = "triton"
    precision: str = "fp32"
    licence: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("id", "reference"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} of a task must be text that is not empty; got {value!r}")
        if self.backend not in BACKENDS:
            raise ValueError(f"backend of task {self.id} must be one of {', '.join(BACKENDS)}; got {self.backend!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision of task {self.id} must be one of {', '.join(PRECISIONS)}; got {self.precision!r}"
            )

    @property
    def title(self) -> str:
        """A short name for people: the operations of a generated task, otherwise the id without a numeric uuid.

        >>> Task(id="Swish/75094645754134", source="example", reference="...").title
        'Swish'
        """
        if composition := self.metadata.get("composition"):
            return " + ".join(composition)
        return re.sub(r"/\d{9,}$", "", self.id)


def init_arguments(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments in a result of ``get_init_inputs``.

    KernelBench returns positional arguments; KernelBook returns a pair of positional arguments and a dict.

    >>> init_arguments([64, 3]), init_arguments([[64], {"bias": False}])
    (([64, 3], {}), ([64], {'bias': False}))
    """
    if len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict):
        return list(given[0]), dict(given[1])
    return list(given), {}


def reference_problem(reference: str, entry_point: str = "Model") -> str | None:
    """Return why this source cannot be a reference, in one clause; None if it can. The source is parsed but not run.

    >>> reference_problem("class Model: ...", "Model")
    'the reference has no function get_inputs'
    >>> reference_problem("class Model(:", "Model")
    'the reference does not parse: invalid syntax (line 1)'
    """
    tree = parse(reference)
    if isinstance(tree, str):
        return f"the reference does not parse: {tree}"
    if entry_point not in classes(tree):
        return f"the reference has no class {entry_point}"
    defined = _names_defined(tree)
    for name in HELPERS:
        if name not in defined:
            return f"the reference has no function {name}"
    return None


def solution_problem(solution: str) -> str | None:
    """Return why this source cannot be a known solution, in one clause; None if it can.

    >>> solution_problem("class Model: ...")
    'the solution has no class ModelNew'
    """
    tree = parse(solution)
    if isinstance(tree, str):
        return f"the solution does not parse: {tree}"
    if SOLUTION_CLASS not in classes(tree):
        return f"the solution has no class {SOLUTION_CLASS}"
    return None


def parse(source: str) -> ast.Module | str:
    """Return the syntax tree, or the reason why the source does not parse. Source from data sets can be arbitrarily
    broken.

    >>> parse("x = (")
    "'(' was never closed (line 1)"
    """
    collecting = gc.isenabled()
    gc.disable()  # a syntax tree has no cycles, but the search for them takes as long as parsing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the data set's docstrings
            return ast.parse(source)
    except SyntaxError as error:
        return f"{error.msg} (line {error.lineno})" if error.lineno else str(error.msg)
    except ValueError as error:  # for a null byte, in some Python versions
        return str(error)
    except (RecursionError, MemoryError):  # CPython raises these for very deep nesting
        return "nested too deeply"
    finally:
        if collecting:
            gc.enable()


def classes(tree: ast.Module) -> frozenset[str]:
    """Return the names of the classes at the top level."""
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))


def _names_defined(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names
