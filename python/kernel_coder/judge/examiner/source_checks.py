"""What a candidate's source text shows about it without running it.

One thing about a candidate cannot be checked from outside its process. The judge relies on the Runner to copy an output
to shared memory after the candidate has computed it, and subtracts the time of such a copy from the candidate's time. A
candidate that finds the Runner in its process, or replaces ``Tensor.copy_`` or ``torch.cuda.synchronize``, could
compute directly into that memory, or answer a moment too early, and so seem faster. If the candidate's text would allow
that (:func:`reaches_out`), nothing is subtracted in the lower bound of its speedup.

Most texts do not allow it: they import only what kernels need, and change only their own objects. For a candidate that
is suspected wrongly the lower bound becomes smaller, and nothing else changes.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator

from kernel_coder.tasks.task import parse

ROOTS = frozenset({"torch", "triton", "math", "typing", "collections", "dataclasses", "enum", "functools", "itertools"})
ROOTS |= {"__future__", "numbers"}
"""Packages that a candidate may import, except for the modules in MODULES."""

MODULES = re.compile(
    r"torch\.(_|fx|hub|jit|library|multiprocessing|overrides|package|profiler|serialization|utils(?!\.cpp_extension\b))"
    r"|triton\.(_|backends|compiler|runtime|tools(?!\.tensor_descriptor\b))"
)
"""Modules of these packages that give access to more: loaders, tracers, and the implementation of operators."""

BUILTINS = frozenset(
    {"__builtins__", "__import__", "breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals"}
    | {"locals", "memoryview", "open", "setattr", "type", "vars"}
)

ATTRIBUTES = (frozenset(sys.stdlib_module_names) - {"chunk", "copy", "math", "random", "select", "trace"}) | {
    "Library", "TorchDispatchMode", "TorchFunctionMode", "classes", "custom_op", "fx", "get_type_hints", "hub", "impl",
    "library", "load_library", "overrides", "package", "serialization",
}  # fmt: skip
"""Attributes of modules that lead to other modules or to torch's internals. The names that are left out are also
methods of tensors, dicts or torch."""

METHODS = frozenset({"__init__", "__call__", "__repr__", "__len__", "__post_init__", "__name__", "__getitem__"})
"""Names beginning with two underscores that a class may define or use."""

NATIVE = re.compile(
    r"from_blob|std::(?:jthread|thread|async)\b|pthread_create|TORCH_LIBRARY|Dispatcher|\bPy(_|Object|Eval|Run|Import|G[iI][lL]|Dict|Frame|Gen|Thread)|module_|import\(|py::(?!arg\b|class_|init\b|none\b)|dlsym|dlopen|\basm\b|__asm|mprotect|\bmmap\b"
    r"|syscall|/proc|cuMem|attribute__\s*\(\(\s*(?:__)?constructor|\[\[gnu::constructor|intptr_t|reinterpret_cast<\s*(?:void|char|float)\s*\*\s*>\s*\(\s*[0-9]"
)
"""Text in C++ that gives access to more than a function's arguments."""


HIDING_NAMES = frozenset(
    {"redispatch", "DispatchKeySet", "numpy", "from_numpy", "from_dlpack", "__array__", "__dlpack__"}
)
"""Names of Python functions that call an operator past torch's dispatcher, or give a tensor's memory to another
library. Neither an audit nor torch's profiler sees what is computed there."""


def hiding_place(source: str, backend: str) -> str | None:
    """Return where a candidate's text may compute without being seen by an audit; None if it cannot. A library that is
    opened with ``ctypes`` counts only under ``triton``: under ``cuda`` and ``cpp`` it may be the candidate's own.

    >>> hiding_place("import numpy as np\\nscale = np.sqrt(64)", "triton") is None
    True
    >>> hiding_place("import torch\\ny = torch.from_numpy(x.numpy() @ w.numpy())", "triton")
    'line 2 computes where the judge cannot see it: torch.from_numpy'
    """
    tree = parse(source)
    if isinstance(tree, str):
        return None
    names = HIDING_NAMES | ({"CDLL", "PyDLL", "cdll", "pythonapi", "CFUNCTYPE"} if backend == "triton" else set())
    for node in ast.walk(tree):
        found = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        is_module = isinstance(node, ast.Name) and found == "numpy"  # a function of numpy may get plain numbers
        if found in names and not is_module:
            text = " ".join((ast.get_source_segment(source, node) or "").split())[:80]
            return f"line {getattr(node, 'lineno', '?')} computes where the judge cannot see it: {text}"
    return None


def reaches_out(source: str) -> bool:
    """Return whether a candidate's text could reach the judge's code in the same process.

    >>> reaches_out("import torch\\nclass ModelNew(torch.nn.Module):\\n    forward = torch.relu")
    False
    >>> reaches_out("import torch\\ntorch.cuda.synchronize = lambda: None")
    True
    >>> reaches_out("import sys\\nrunner = sys._getframe(3).f_locals['self']")
    True
    """
    return reach_reason(source) is not None


def reach_reason(source: str) -> str | None:
    """Return which part of a candidate's text could reach the judge's code in the same process; None if no part could.

    >>> reach_reason("import sys\\nclass ModelNew: pass")
    "line 1 could reach the judge's part of the process, so nothing is subtracted from its time: import sys"
    """
    told = "could reach the judge's part of the process, so nothing is subtracted from its time"
    tree = parse(source)
    for text in [source] if isinstance(tree, str) else _strings(tree):
        if found := NATIVE.search(text):
            return f"{found[0]!r} {told}"
    if isinstance(tree, str):
        return None
    for node, could in _findings(tree):
        if could:
            text = " ".join((ast.get_source_segment(source, node) or "").split())[:80]
            return f"line {getattr(node, 'lineno', '?')} {told}: {text}"
    return None


def _strings(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a Python text, which may contain C++. Docstrings are left out, and comments as well.

    >>> list(_strings(ast.parse("'About.'\\nx = 'a' 'b'  # dlopen")))
    ['ab']
    """
    nodes = list(ast.walk(tree))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def _findings(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each node of the text, and whether it could reach the judge's code."""
    looked_into, modules = _names(tree)
    for node in ast.walk(tree):
        yield node, any(_of_node(node, looked_into, modules))


def _names(tree: ast.AST) -> tuple[set[int], set[str]]:
    """Return the ids of nodes of which only an attribute is read or which are called, and the names of modules."""
    modules = {"torch", "triton"}
    looked_into: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.Attribute):
            looked_into.add(id(node.value))
        elif isinstance(node, ast.Call):
            looked_into.add(id(node.func))
            if isinstance(node.func, ast.Name) and node.func.id in {"isinstance", "issubclass", "cast"}:
                looked_into |= {id(part) for one in node.args for part in ast.walk(one)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            looked_into |= {id(one) for one in node.decorator_list}
        annotations = [getattr(node, name, None) for name in ("annotation", "returns")]
        looked_into |= {id(part) for one in annotations if one is not None for part in ast.walk(one)}
    return looked_into, modules


def _of_node(node: ast.AST, looked_into: set[int], modules: set[str]) -> Iterator[bool]:
    """For each part of one node, yield whether it could reach the judge's code."""
    if isinstance(node, ast.Import):
        yield from (_leads_elsewhere(one.name) for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.level > 0 or any(_leads_elsewhere(f"{node.module}.{one.name}") for one in node.names)
        yield any(one.name in ATTRIBUTES for one in node.names)
    elif isinstance(node, ast.Attribute):
        yield _is_hidden(node.attr) or (node.attr in ATTRIBUTES and not _is_own(node.value))
        yield node.attr.startswith("_") and _root(node.value) in modules
        yield not isinstance(node.ctx, ast.Load) and not _is_own(node.value)
        yield id(node) not in looked_into and _root(node) in modules and _is_shared(node.attr)
    elif isinstance(node, ast.Name):
        yield node.id in BUILTINS or _is_hidden(node.id)
        yield id(node) not in looked_into and node.id in modules and _is_shared(node.id)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name.startswith("__") and node.name not in METHODS
    elif isinstance(node, ast.ClassDef):
        yield bool(node.keywords) or any("Tensor" in ast.unparse(base) for base in node.bases)


def _is_own(node: ast.AST) -> bool:
    """Return whether an expression is ``self``, ``ctx`` or an attribute of one: a candidate may set those."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in {"self", "ctx"}


def _is_shared(name: str) -> bool:
    """Return whether this names a module or the class of tensors. As a value it could be renamed and changed."""
    return name in {"Tensor", "F", "nn", "tl", "torch", "triton"} or name in _submodules()


@functools.cache
def _submodules() -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in list(sys.modules) if name.startswith(("torch.", "triton.")))


def _leads_elsewhere(module: str) -> bool:
    return module.partition(".")[0] not in ROOTS or MODULES.match(module) is not None or module.endswith(".*")


def _is_hidden(name: str) -> bool:
    return name.startswith("__") and name not in METHODS


def _root(node: ast.AST) -> str:
    """Return the name that a chain of attributes, calls and subscripts begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def speaks_of_streams(source: str) -> bool:
    """Return whether a candidate may use CUDA streams of its own.

    >>> speaks_of_streams("side = torch.cuda.Stream()"), speaks_of_streams("return torch.relu(x)")
    (True, False)
    """
    return "stream" in source.lower()
