"""Whether a candidate's text could take hold of what runs around it in its own process.

The judge believes nothing that a candidate's process says, but one thing: that an output was copied into shared memory
when the candidate had made it, and that copying takes what it takes of others, which is taken off the candidate's time.
Who finds the Runner in its process, or takes the place of ``Tensor.copy_`` or ``torch.cuda.synchronize``, could compute
into that memory at once, or answer a moment too early, and would be the faster by that. Nobody outside can tell. So a
lower bound of who could have done that takes nothing of it off.

Most candidates could not, as their text shows: it imports what kernels are written with, and changes nothing that it
did not make. To be taken for one that could costs a part of the lower bound and nothing else.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator

import torch

from kernel_coder.tasks.task import parse

ROOTS = frozenset({"torch", "triton", "math", "typing", "collections", "dataclasses", "enum", "functools", "itertools"})
ROOTS |= {"__future__", "numbers"}
"""What may be imported, as far as MODULES says nothing else."""

MODULES = re.compile(
    r"torch\.(_|fx|hub|jit|library|multiprocessing|overrides|package|profiler|serialization|utils(?!\.cpp_extension\b))"
    r"|triton\.(_|backends|compiler|runtime|tools)"
)
"""Of these, what reaches further: loaders, tracers, what stands behind operators."""

BUILTINS = frozenset(
    {"__builtins__", "__import__", "breakpoint", "compile", "delattr", "dir", "eval", "exec", "getattr", "globals"}
    | {"input", "locals", "memoryview", "open", "setattr", "type", "vars"}
)

ATTRIBUTES = (frozenset(sys.stdlib_module_names) - {"math", "random", "select", "trace"}) | {
    "Library", "TorchDispatchMode", "TorchFunctionMode", "classes", "custom_op", "fx", "get_type_hints", "hub", "impl",
    "library", "load_library", "overrides", "package", "serialization",
}  # fmt: skip
"""What modules have that lead elsewhere. (Those four are methods of tensors, or torch's own.)"""

METHODS = frozenset({"__init__", "__call__", "__repr__", "__len__", "__post_init__", "__name__", "__getitem__"})
"""Names with two underscores that a class may define, or that may be asked for."""

NATIVE = re.compile(
    r"from_blob|TORCH_LIBRARY|Dispatcher|\bPy(_|Object|Eval|Run|Import|G[iI][lL]|Dict|Frame|Gen|Thread)|module_|import\(|py::|dlsym|dlopen|\basm\b|__asm|mprotect|\bmmap\b"
    r"|syscall|/proc|cuMem|constructor|intptr_t|reinterpret_cast<\s*(?:void|char|float)\s*\*\s*>\s*\(\s*[0-9]"
)
"""In C++ that reaches beyond its arguments."""


def reaches_out(source: str) -> bool:
    """Whether a candidate's text leaves room for that.

    >>> reaches_out("import torch\\nclass ModelNew(torch.nn.Module):\\n    forward = torch.relu")
    False
    >>> reaches_out("import torch\\ntorch.cuda.synchronize = lambda: None")
    True
    >>> reaches_out("import sys\\nrunner = sys._getframe(3).f_locals['self']")
    True
    """
    if NATIVE.search(source):
        return True
    tree = parse(source)
    return not isinstance(tree, str) and any(_findings(tree))


def _findings(tree: ast.AST) -> Iterator[bool]:
    """One for each place that could."""
    modules = {"torch", "triton"}
    looked_into = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.Attribute):
            looked_into.add(id(node.value))
        elif isinstance(node, ast.Call):
            looked_into.add(id(node.func))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            looked_into |= {id(one) for one in node.decorator_list}
        annotations = [getattr(node, name, None) for name in ("annotation", "returns")]
        looked_into |= {id(part) for one in annotations if one is not None for part in ast.walk(one)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_leads_elsewhere(one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level > 0 or any(_leads_elsewhere(f"{node.module}.{one.name}") for one in node.names)
            yield any(one.name in ATTRIBUTES for one in node.names)
        elif isinstance(node, ast.Attribute):
            yield _is_hidden(node.attr) or node.attr in ATTRIBUTES
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
    """Of the candidate's: what it sets attributes of."""
    return isinstance(node, ast.Name) and node.id in {"self", "ctx"}


def _is_shared(name: str) -> bool:
    """A module, or tensors' class: whoever has it as a value can call it whatever it likes, self too."""
    return name in {"Tensor", "F", "nn", "tl", "torch", "triton"} or name in _submodules()


@functools.cache
def _submodules() -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in list(sys.modules) if name.startswith(("torch.", "triton.")))


def _leads_elsewhere(module: str) -> bool:
    return module.partition(".")[0] not in ROOTS or MODULES.match(module) is not None or module.endswith(".*")


def _is_hidden(name: str) -> bool:
    return name.startswith("__") and name not in METHODS


def _root(node: ast.AST) -> str:
    """The name that a chain of attributes, calls and subscripts begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


_PAST_DISPATCHER = re.compile(
    r"at::(?:cpu|cuda|meta|native|_ops|redispatch|composite\w+)::(?P<operator>\w+)|\w*DispatchKeyGuard"
    r"|\b(?:cblas_\w+|[sdcz]ge(?:mm|mv)_)"
)


def library_call(source: str) -> str | None:
    """What C++ calls of a library where torch's dispatcher, and so an audit, does not see it: operators by the names
    that they have behind it, BLAS, and what switches it off.

    >>> library_call("at::cpu::_softmax(x, 1, false)"), library_call("cblas_sgemm(order)")
    ('at::cpu::_softmax', 'cblas_sgemm')
    >>> library_call("at::cuda::getCurrentCUDAStream(); at::softmax(x, 1)") is None
    True
    """
    for match in _PAST_DISPATCHER.finditer(source):
        if match["operator"] is None or hasattr(torch.ops.aten, match["operator"]):
            return match[0]
    return None


def speaks_of_streams(source: str) -> bool:
    """Whether a candidate may have streams of its own.

    >>> speaks_of_streams("side = torch.cuda.Stream()"), speaks_of_streams("return torch.relu(x)")
    (True, False)
    """
    return "stream" in source.lower()
