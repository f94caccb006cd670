"""Making modules from files small enough for Triton's interpreter, by halving the sizes that their text names.

Benchmarks size their modules for a GPU; the interpreter takes a millisecond or two for each program of a grid.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from kernel_coder.tasks.task import HELPERS, init_arguments, parse

SMALLEST = 4
"""No size is halved below this: what is left of a module must still have rows and columns."""


def shrunk(reference: str, max_size: int) -> str:
    """The module with every integer constant of its top level halved until it is at most `max_size`.

    >>> shrunk("batch, dim = 4096, 20\\nshape = (1024, 3)", 64)
    'batch, dim = 64, 20\\nshape = (64, 3)'
    """
    tree = parse(reference)
    if isinstance(tree, str):
        return reference

    def halved(size: int) -> int:
        while size > max_size:
            size //= 2
        return size

    assigned = (statement.value for statement in tree.body if isinstance(statement, ast.Assign))
    return _with_sizes(reference, [node for value in assigned for node in _integers(value)], halved)


def fitted(reference: str, entry_point: str, max_elements: int) -> str:
    """The module with sizes halved until no tensor that it makes has more than `max_elements` elements.

    Sizes are the integers of the top level's assignments, of ``get_inputs`` and of ``get_init_inputs``. The largest
    goes first; equal ones stay equal and others different, so that channels do not become as few as their groups. One
    whose halving breaks the module, or makes no tensor smaller that is too large, stays as it is. The module is run on
    tensors without memory, never on numbers; its text is executed, so it must be trusted. One that cannot be run so
    comes back unchanged.
    """
    excess = _excess(reference, entry_point, max_elements)
    fixed: set[int] = set()
    while excess:
        tree = parse(reference)
        assert not isinstance(tree, str)  # it has been executed
        places = [
            node
            for statement in tree.body
            if isinstance(statement, ast.Assign)
            or (isinstance(statement, ast.FunctionDef) and statement.name in HELPERS)
            for node in _integers(statement)
        ]
        sizes = {int(str(node.value)) for node in places if isinstance(node, ast.Constant)} - fixed
        size = max(sizes, default=0)
        if size < 2 * SMALLEST:
            break
        halved = {size}
        while (last := min(halved) // 2) in sizes and last >= 2 * SMALLEST:
            halved.add(last)
        chosen = [node for node in places if node.value in halved]
        smaller = _with_sizes(reference, chosen, lambda value: value // 2)
        left = _excess(smaller, entry_point, max_elements)
        if left is None or left >= excess:
            fixed.add(size)
        else:
            reference, excess = smaller, left
    return reference


def _integers(node: ast.AST) -> Iterator[ast.Constant]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Constant) and type(each.value) is int)


def _with_sizes(source: str, places: list[ast.Constant], change: Callable[[int], int]) -> str:
    lines = source.encode().splitlines(keepends=True)
    for node in sorted(places, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        old = int(str(node.value))
        if (new := change(old)) != old:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line[: node.col_offset] + str(new).encode() + line[node.end_col_offset :]
    return b"".join(lines).decode()


def _excess(reference: str, entry_point: str, max_elements: int) -> int | None:
    """By how many elements the module's tensors are too large, all together; None where it cannot be run."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    total = 0

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal total
            out = func(*args, **(kwargs or {}))
            for value in out if isinstance(out, tuple | list) else (out,):
                if isinstance(value, torch.Tensor):
                    total += max(0, value.numel() - max_elements)
            return out

    try:
        namespace: dict[str, Any] = {}
        exec(compile(reference, f"<{entry_point}>", "exec"), namespace)  # what it imports must not remember the mode
        with FakeTensorMode(allow_non_fake_inputs=True), Counting(), torch.no_grad():
            args, kwargs = init_arguments(namespace["get_init_inputs"]())
            namespace[entry_point](*args, **kwargs).eval()(*namespace["get_inputs"]())
    except Exception:  # whatever the module raises
        return None
    return total
