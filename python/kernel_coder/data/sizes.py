"""Makes modules small enough for Triton's interpreter, by halving the sizes in their source.

Benchmarks choose sizes for GPUs; the interpreter takes 1 to 2 ms for each program of a grid.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from kernel_coder.tasks.task import HELPERS, init_arguments, parse

SMALLEST = 4
"""No size is halved below this, so that tensors keep several rows and columns."""


def shrunk(reference: str, max_size: int) -> str:
    """Return the module with every integer in its top-level assignments halved until it is at most ``max_size``.

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
    """Return the module with sizes halved until none of its tensors has more than ``max_elements`` elements.

    Sizes are the integers in top-level assignments, ``get_inputs`` and ``get_init_inputs``. The largest size is halved
    first. Equal sizes stay equal and different ones stay different, so that, for example, there remain more channels
    than groups. A size is kept if halving it breaks the module or does not make a too large tensor smaller. The module
    runs on fake tensors, which hold no data. Its source is executed, so it must be trusted. A module that cannot run on
    fake tensors is returned unchanged.
    """
    excess = _excess(reference, entry_point, max_elements)
    fixed: set[int] = set()
    while excess:
        tree = parse(reference)
        assert not isinstance(tree, str)  # _excess has executed it
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
    """Return the number of elements above ``max_elements``, summed over the module's tensors; None if it cannot run."""
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
        exec(compile(reference, f"<{entry_point}>", "exec"), namespace)  # outside the mode, which imports must not see
        with FakeTensorMode(allow_non_fake_inputs=True), Counting(), torch.no_grad():
            args, kwargs = init_arguments(namespace["get_init_inputs"]())
            namespace[entry_point](*args, **kwargs).eval()(*namespace["get_inputs"]())
    except Exception:  # the module can raise anything
        return None
    return total
