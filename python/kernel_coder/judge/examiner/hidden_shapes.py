"""Other input sizes that a reference accepts, made by changing numbers in its source or the batch of its inputs.

A candidate that is right only for the task's own sizes has not solved the task.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.wire.messages import TensorSpec
from kernel_coder.judge.wire.trees import map_tensors

GROWING_ELEMENTS = 1 << 22
"""Upper limit of the elements of a task's inputs at which hidden sizes may be larger than the task's own."""

TAKE_SIZES = frozenset({"rand", "randn", "zeros", "ones", "empty"})
"""Functions of torch that take the sizes of the new tensor as positional arguments."""

DRAWS_INTEGERS = re.compile(r"\b(randint|randperm|arange|long|int|int8|int16|int32|int64|uint8)\b")
"""Words that show that ``get_inputs`` makes integers. These may be indices, valid only for the task's own sizes."""


OWN_NAME = re.compile(r"dim(\d+)_was_(\d+)")
"""Names that :func:`with_named_sizes` gives to sizes: the place among a tensor's sizes, and the size."""


class OtherSizes(NamedTuple):
    """Sizes that differ from the task's own."""

    description: str
    """For example "rows = 7", or "dimension 0: 6 -> 7" for a size that has no name in the source."""

    get_inputs: Callable[[], Any]


def other_sizes(
    source: str,
    get_inputs: Callable[[], Any],
    input_shapes: Sequence[tuple[int, ...]],
    output_specs: Sequence[TensorSpec],
    is_larger: bool,
    rng: random.Random,
) -> Iterator[OtherSizes]:
    """Yield sizes to try, the preferred ones first. All are secret. Smaller ones are at least a third of the task's
    own. Larger ones lie just above the next power of two, where a kernel's block often ends, and are less than three
    times the task's own.

    Sizes are the numbers at the top level of the source that only the inputs depend on, and the numbers that
    ``get_inputs`` itself passes to torch. Smaller sizes begin with the first dimensions of inputs, since a kernel may
    need a power of two elsewhere. Then come all sizes, then each of them alone, then another batch, unless the
    constructor is told the batch. Among larger sizes, a first dimension alone comes after all others.

    Args:
        source: the reference's source.
        get_inputs: the task's own function.
        input_shapes: shapes of the task's own inputs.
        output_specs: specs of the reference's outputs for them.
        is_larger: whether to yield larger sizes, unless the inputs are large already; otherwise smaller ones.
        rng: a secret random generator.
    """
    source = with_named_sizes(source)
    first = {shape[0] for shape in input_shapes if shape}
    sizes = input_sizes(source)
    own = {name: size for name, size in sizes.items() if size > 2 or (size in first and _may_be_first(name))}
    may_grow = is_larger and sum(math.prod(shape) for shape in input_shapes) <= GROWING_ELEMENTS
    others = {name: _another(size, may_grow, rng) for name, size in own.items()}
    rows = {name: others[name] for name, size in own.items() if size in first and _may_be_first(name)}
    alone = [{name: others[name]} for name in sorted(others, key=lambda name: is_larger and name in rows)]
    choices = [one for one in (others, *alone) if one] if is_larger else [one for one in (rows, others, *alone) if one]
    for choice in choices:
        namespace: dict[str, Any] = {"__name__": "reference"}
        exec(compile(with_sizes(source, choice), "reference.py", "exec"), namespace)
        yield OtherSizes(", ".join(_change(*one) for one in choice.items()), namespace["get_inputs"])
    batches = {shape[0] for shape in input_shapes if len(shape) >= 2}
    if len(batches) == 1 and all(shape[0] in batches for shape in input_shapes if shape):
        batch = batches.pop()
        if batch in constructor_sizes(source):
            return
        other = _another(batch, may_grow, rng)
        if all(not spec.shape or spec.shape[0] == batch for spec in output_specs):  # a loss has no dimensions

            def rebatched() -> Any:
                return map_tensors(get_inputs(), lambda one: _rebatched(one, batch, other))

            yield OtherSizes(f"batch = {other}", rebatched)


def _may_be_first(name: str) -> bool:
    """Return whether a size may be the first dimension of an input."""
    if found := OWN_NAME.fullmatch(name):
        return found[1] == "0"
    return "[" not in name or name.endswith("[0]")


def _change(name: str, size: int) -> str:
    """Return a size and its new value in words."""
    found = OWN_NAME.fullmatch(name)
    return f"dimension {found[1]}: {found[2]} -> {size}" if found else f"{name} = {size}"


def _another(size: int, may_grow: bool, rng: random.Random) -> int:
    """Return a secret size: above the next power of two if it may be larger, else smaller if that is possible."""
    if may_grow:
        block = 1 << (size - 1).bit_length()
        return block + 1 + rng.randrange(max(size // 2, 2))
    least = max(size // 3, 1)
    return rng.randrange(least, size) if size > least else size + 1


def input_sizes(source: str) -> dict[str, int]:
    """Return the integers above 1 that have a name at the top level of a reference and that only ``get_inputs`` uses.
    The elements of a tuple have the name of the tuple and their place.

    >>> input_sizes("n, m, k = 8, 32, 5\\nclass Model:\\n  x = k\\ndef get_inputs(): return (n, m, k)")
    {'n': 8, 'm': 32}
    >>> input_sizes("SHAPE = (4, 64)\\ndef get_inputs(): return torch.rand(SHAPE)")
    {'SHAPE[0]': 4, 'SHAPE[1]': 64}
    """
    tree = ast.parse(source)
    found: dict[str, int] = {}
    for name, value in _assigned(tree):
        if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 1:
            found[name] = value.value
    for node in tree.body:
        is_inputs = isinstance(node, ast.FunctionDef) and node.name == "get_inputs"
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        for name in list(found):
            if (name.partition("[")[0] in used) != is_inputs:  # get_inputs has to use it, and nothing else may
                del found[name]
    return found


def constructor_sizes(source: str) -> set[int]:
    """Return the integers with a name at the top level of a reference that ``get_init_inputs`` and ``get_inputs`` both
    use. The constructor is told these sizes, so inputs of other sizes would contradict it.

    >>> constructor_sizes("n, m = 8, 9\\ndef get_inputs(): return (n, m)\\ndef get_init_inputs(): return [n]")
    {8}
    """
    tree = ast.parse(source)
    used = {
        node.name: {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    told = used.get("get_inputs", set()) & used.get("get_init_inputs", set())
    values = [value.value for name, value in _assigned(tree) if name in told and isinstance(value, ast.Constant)]
    return {one for one in values if type(one) is int}


def with_named_sizes(source: str) -> str:
    """Return the source with a name at the top level for each number above 1 that ``get_inputs`` passes to torch as a
    size. Numbers at the same place of different tensors have the same name if they are equal.

    >>> print(with_named_sizes("def get_inputs(): return [torch.rand([4, 8]), torch.rand(4, 3)]"))
    dim0_was_4 = 4
    dim1_was_8 = 8
    dim1_was_3 = 3
    <BLANKLINE>
    def get_inputs():
        return [torch.rand([dim0_was_4, dim1_was_8]), torch.rand(dim0_was_4, dim1_was_3)]
    """
    tree = ast.parse(source)
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "get_inputs"]
    if len(functions) != 1 or DRAWS_INTEGERS.search(ast.unparse(functions[0])):
        return source
    found: dict[str, int] = {}
    for call in ast.walk(functions[0]):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in TAKE_SIZES:
            _name_sizes(call, found)
    at = tree.body.index(functions[0])
    tree.body[at:at] = ast.parse("\n".join(f"{name} = {size}" for name, size in found.items())).body
    return ast.unparse(tree)


def _name_sizes(call: ast.Call, found: dict[str, int]) -> None:
    """Replace the sizes in a call such as ``torch.rand(4, 8)`` or ``torch.rand((4, 8))`` by names, and add these."""
    nested = call.args[0] if len(call.args) == 1 else None
    sizes = nested.elts if isinstance(nested, ast.List | ast.Tuple) else call.args
    for index, size in enumerate(sizes):
        if isinstance(size, ast.Constant) and type(size.value) is int and size.value > 1:
            name = f"dim{index}_was_{size.value}"
            found[name] = size.value
            sizes[index] = ast.Name(name, ast.Load())


def with_sizes(source: str, sizes: Mapping[str, int]) -> str:
    """Return the source of the reference with other numbers.

    >>> with_sizes("n, m = 8, 9\\nk = 3", {"n": 7})
    'n, m = (7, 9)\\nk = 3'
    """
    tree = ast.parse(source)
    for name, value in _assigned(tree):
        if name in sizes and isinstance(value, ast.Constant):
            value.value = sizes[name]
    return ast.unparse(tree)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that is assigned to at the top level, and the expression; also in ``a, b = 1, 2``. For a tuple
    with one name, yield a name and the expression for each element."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Tuple | ast.List):
                yield from ((f"{target.id}[{place}]", value) for place, value in enumerate(node.value.elts))
            elif isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=False):
                    if isinstance(one, ast.Name):
                        yield one.id, value


def _rebatched(tensor: Tensor, batch: int, other: int) -> Tensor:
    """Return the tensor with `other` rows if it has `batch` rows; otherwise the tensor itself."""
    if not tensor.dim() or tensor.shape[0] != batch:
        return tensor
    repeats = -(-other // batch)
    return torch.cat([tensor] * repeats)[:other].contiguous()
