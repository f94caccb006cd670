"""Programs on single elements: trees of operations, their expansion and fusion, and the lines of their kernels.

A program is drawn with the operations of :mod:`~kernel_coder.tasks.generator.pointwise`, on one to three tensors of
one shape, learnt vectors and learnt numbers. :func:`expand` splits fused operations as in PyTorch code (``gate``
becomes ``x * torch.sigmoid(y)``), :func:`fold` fuses them again, and :func:`lower` writes the lines of a kernel: one
for each operation, in the order in which Python evaluates them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kernel_coder.tasks.generator.pointwise import (
    ACTIVATIONS,
    ARITHMETIC,
    BINARY,
    BY_NAME,
    LARGEST_ERROR,
    NORMAL,
    TRANSCENDENTAL,
    Pointwise,
    Range,
    UnsuitableError,
    image,
)

PLAIN = (
    Pointwise("sqrt", ("torch.sqrt({x})",), "{x} = tl.sqrt({x})"),
    Pointwise("log", ("torch.log({x})",), "{x} = tl.log({x})"),
    Pointwise("rsqrt", ("torch.rsqrt({x})",), "{x} = tl.rsqrt({x})"),
    Pointwise("reciprocal", ("1 / {x}",), "{x} = 1.0 / {x}"),
    Pointwise("div", ("{x} / {y}",), "{x} = {x} / {y}"),
)
"""Operations that other families have only as parts of fused ones."""

OPERATIONS: Mapping[str, Pointwise] = {**BY_NAME, **{op.name: op for op in PLAIN}}
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum"})
TEMPORARIES = ("h", "g", "k")
"""Variables of a kernel for values whose operands are needed again."""

PARAMETERS: Mapping[str, str] = {"row": "_row", "scalar": "_scalar"}
"""Kinds of learnt operands, with the suffix that they add to an operation's name in a composition."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of an operation; `name` is the attribute that holds it, if one does; `negated` puts a minus first."""

    value: float
    name: str = ""
    negated: bool = False

    @property
    def triton(self) -> str:
        return f"{'-' * self.negated}{self.name}" if self.name else repr(self.value)


@dataclass(eq=False, slots=True)
class Node:
    """A value: a leaf (`name` of a variable), or an operation on others.

    Two nodes are the same value if they are the same object or name the same variable. A node with two parents is
    computed once.
    """

    op: str = ""
    args: tuple[Node, ...] = ()
    values: Mapping[str, Constant] = field(default_factory=dict)
    name: str = ""

    def walk(self) -> Iterator[Node]:
        """Yield every node once, operands first, from left to right."""
        seen: set[int] = set()

        def visit(node: Node) -> Iterator[Node]:
            if id(node) not in seen:
                seen.add(id(node))
                for arg in node.args:
                    yield from visit(arg)
                yield node

        yield from visit(self)

    def is_same(self, other: Node) -> bool:
        return self is other or (bool(self.name) and self.name == other.name)


def parents(*roots: Node) -> Counter[int]:
    """Return how often each node is an operand, by `id`."""
    nodes = {id(node): node for root in roots for node in root.walk()}
    return Counter(id(arg) for node in nodes.values() for arg in node.args)


# Fused operations -----------------------------------------------------------------------------------------------------

PATTERNS: Mapping[str, tuple[Any, ...]] = {
    "silu": ("mul", "x", ("sigmoid", "x")),
    "mish": ("mul", "x", ("tanh", ("softplus", "x"))),
    "gate": ("mul", "x", ("sigmoid", "y")),
    "silu_gate": ("mul", "x", ("silu", "y")),
    "softsign": ("div", "x", ("shift", 1.0, ("abs", "x"))),
    "soft_divide": ("div", "x", ("shift", 1.0, ("abs", "y"))),
    "square_diff": ("square", ("sub", "x", "y")),
    "abs_diff": ("abs", ("sub", "x", "y")),
    "lerp": ("add", "x", ("scale", "a", ("sub", "y", "x"))),
    "add_scaled": ("add", "x", ("scale", "a", "y")),
    "hypot": ("sqrt", ("shift", "a", ("add", ("square", "x"), ("square", "y")))),
    "sqrt_abs": ("sqrt", ("shift", "a", ("abs", "x"))),
    "log1p_abs": ("log", ("shift", 1.0, ("abs", "x"))),
    "gaussian": ("exp", ("negate", ("square", "x"))),
    "inverse_square": ("reciprocal", ("shift", 1.0, ("square", "x"))),
    "rsqrt_square": ("rsqrt", ("shift", "a", ("square", "x"))),
}
"""Fused operations as in PyTorch code: an operation, its constant (a number, or ``"a"`` for any), its operands."""


_FOLDED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("silu_gate", ("mul", "x", ("mul", "y", ("sigmoid", "y")))),
    *PATTERNS.items(),
)
"""The patterns that :func:`fold` looks for, in this order."""


def _parts(pattern: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """Return the pattern's operation, its constant or None, and the patterns of its operands."""
    name, *rest = pattern
    has_constant = isinstance(rest[0], float) or rest[0] == "a"
    return name, rest[0] if has_constant else None, tuple(rest[has_constant:])


def expand(root: Node, rng: Random, share: float = 0.8) -> Node:
    """Return the same program with a `share` of the fused operations split, and operands of sums in any order."""
    done: dict[int, Node] = {}
    alive: list[Node] = []  # keeps temporary nodes alive, so that Python does not give their ids to other nodes

    def build(pattern: Any, operands: Mapping[str, Node], values: Mapping[str, Constant]) -> Node:
        if isinstance(pattern, str):
            return operands[pattern]
        name, constant, inner = _parts(pattern)
        own = {} if constant is None else {"a": values["a"] if constant == "a" else Constant(constant)}
        return Node(name, swapped(name, [build(each, operands, values) for each in inner]), own)

    def swapped(op: str, args: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(args[::-1]) if op in COMMUTATIVE and rng.random() < 0.35 else tuple(args)

    def visit(node: Node) -> Node:
        if id(node) not in done:
            args = [visit(arg) for arg in node.args]
            if node.op in PATTERNS and rng.random() < share:
                made = build(PATTERNS[node.op], dict(zip("xy", args, strict=False)), node.values)
                alive.append(made)
                done[id(node)] = visit(made) if made.op in PATTERNS else made
            else:
                done[id(node)] = Node(node.op, swapped(node.op, args), node.values) if args else node
        return done[id(node)]

    return visit(root)


def fold(root: Node, uses: Mapping[int, int] | None = None) -> Node:
    """Return the same program with operations fused where :data:`PATTERNS` fit; values with two uses are not fused."""
    uses = parents(root) if uses is None else uses
    done: dict[int, Node] = {}

    def match(pattern: Any, node: Node, found: dict[str, Node], is_root: bool = False) -> dict[str, Node] | None:
        if isinstance(pattern, str):
            return {**found, pattern: node} if pattern not in found or found[pattern].is_same(node) else None
        name, constant, inner = _parts(pattern)
        if node.op != name or (uses.get(id(node), 0) > 1 and not is_root):
            return None
        if constant == "a":
            found = {**found, "a": node}
        elif constant is not None and (node.values["a"].name or node.values["a"].value != constant):
            return None
        for order in (node.args, node.args[::-1]) if name in COMMUTATIVE else (node.args,):
            now: dict[str, Node] | None = found
            for each, arg in zip(inner, order, strict=True):
                now = None if now is None else match(each, arg, now)
            if now is not None:
                return now
        return None

    def visit(node: Node) -> Node:
        if id(node) not in done:
            done[id(node)] = fused(node) if node.args else node
        return done[id(node)]

    def fused(node: Node) -> Node:
        for name, pattern in _FOLDED:
            if (found := match(pattern, node, {}, is_root=True)) is not None:
                args = [visit(found[key]) for key in sorted({"x", "y"} & set(found))]
                values = found["a"].values if "a" in found else {}
                return Node(name, tuple(args), values)
        return Node(node.op, tuple(visit(arg) for arg in node.args), node.values)

    return visit(root)


def composition(root: Node, parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Return the operations' names in an order that does not depend on the spelling, with the names of other families.

    `parameters` maps a learnt leaf to its kind, a key of :data:`PARAMETERS`.

    >>> x, y = Node(name="x"), Node(name="y")
    >>> composition(Node("mul", (Node("sigmoid", (y,)), Node("relu", (x,)))), {})
    ('relu', 'gate')
    """
    seen: set[int] = set()

    def visit(node: Node) -> tuple[str, ...]:
        if not node.args or id(node) in seen:
            return ()
        seen.add(id(node))
        operands = [visit(arg) for arg in node.args]
        if node.op in COMMUTATIVE:
            operands.sort(key=_longest_first)
        kinds = [PARAMETERS[parameters[arg.name]] for arg in node.args if arg.name in parameters]
        return (*(name for names in operands for name in names), node.op + "".join(kinds[:1]))

    return visit(fold(_ordered(expand(root, Random(0), share=1.0))))


def _longest_first(names: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    return -len(names), names


def _ordered(root: Node) -> Node:
    """Return the same program with the operands of sums and products in a fixed order: the longest first."""
    done: dict[int, tuple[tuple[str, ...], Node]] = {}

    def visit(node: Node) -> tuple[tuple[str, ...], Node]:
        if id(node) not in done:
            args = [visit(arg) for arg in node.args]
            if node.op in COMMUTATIVE:
                args.sort(key=lambda each: _longest_first(each[0]))
            names = (*(name for each, _ in args for name in each), node.op) if args else ()
            done[id(node)] = names, (Node(node.op, tuple(arg for _, arg in args), node.values) if args else node)
        return done[id(node)]

    return visit(root)[1]


# The kernel -----------------------------------------------------------------------------------------------------------


def lower(statements: Sequence[tuple[str, Node]], inputs: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """Return the kernel's lines for ``name = tree`` statements, and last the variable that holds the result.

    A value overwrites its first operand, or the second, if that is not needed again; otherwise it gets a variable of
    :data:`TEMPORARIES`. The inputs' variables have the inputs' names.

    Raises:
        UnsuitableError: more values are needed at the same time than there are variables.

    >>> x = Node(name="x")
    >>> lower([("out", Node("mul", (x, Node("tanh", (Node("exp", (x,)),)))))], ["x"], [])[:2]
    ['h = tl.exp(x)', 'h = 2.0 * tl.sigmoid(2.0 * h) - 1.0']
    """
    trees = [(name, fold(tree)) for name, tree in statements]
    left = Counter(arg.name for _, tree in trees for node in tree.walk() for arg in node.args if arg.name)
    place = {name: name for name in (*inputs, *parameters)}
    held: set[str] = set()  # temporaries in use
    lines: list[str] = []

    def visit(node: Node) -> str:
        if not node.args:
            return place[node.name]
        registers = [visit(arg) for arg in node.args]
        for arg in node.args:
            if arg.name:
                left[arg.name] -= 1
        free = [
            register
            for arg, register in zip(node.args, registers, strict=True)
            if arg.name not in parameters and not (arg.name and left[arg.name])
        ]
        if free:
            target = free[0]
            held.difference_update(register for register in free if register != target)
        else:
            target = next((name for name in TEMPORARIES if name not in held), "")
            if not target:
                raise UnsuitableError("more values at a time than a kernel of this kind has variables")
            held.add(target)
        *before, last = OPERATIONS[node.op].triton.split("\n")
        texts = {key: value.triton for key, value in node.values.items()}
        operands = dict(zip("xy", registers, strict=False))
        filled = [line.format(**{"y": "", **operands}, **texts) for line in (*before, last.removeprefix("{x} = "))]
        filled[-1] = f"{target} = {filled[-1]}"
        lines.extend(line.replace("+ -", "- ").replace("- -", "+ ") for line in filled)
        return target

    result = ""
    for name, tree in trees:
        result = visit(tree)
        place[name] = result
    return [*lines, result]


# Drawing --------------------------------------------------------------------------------------------------------------

UNARY = (*ACTIVATIONS, *ARITHMETIC, *TRANSCENDENTAL, *PLAIN[:4])
FREQUENT = tuple(
    OPERATIONS[name]
    for name in (
        *("relu", "sigmoid", "tanh", "silu", "gelu", "softplus", "leaky_relu", "exp", "abs", "square", "clamp"),
        *("scale", "scale", "scale", "shift", "shift", "subtract_from", "negate", "divide", "log1p_abs", "sqrt_abs"),
    )
)
"""The operations that people use most. Half of the drawn operations are of these."""
COMBINING = (*BINARY, OPERATIONS["div"])
FREQUENT_COMBINING = tuple(OPERATIONS[name] for name in ("add", "add", "mul", "mul", "mul", "sub", "gate", "gate"))


@dataclass(slots=True)
class Value:
    """A node with the range and error of its values."""

    node: Node
    span: Range
    error: float = 3e-8
    is_input: bool = False


def _changed(values: Mapping[str, float], rng: Random) -> Mapping[str, float]:
    """Replace the numbers, half of the time, by numbers of about the same size with one to three decimals."""
    if rng.random() < 0.5:
        changed = {
            key: round(value * rng.uniform(0.8, 1.25), rng.choice((1, 2, 2, 3))) for key, value in values.items()
        }
        if all(changed.values()) and changed.get("a", -1e9) < changed.get("b", 1e9):
            return changed
    return values


def _coarse(span: Range) -> Range:
    """Return the range, a little wider, in few digits, so that the effect of an operation is computed once for many
    programs."""
    step = 10.0 ** (math.floor(math.log10(max(abs(span[0]), abs(span[1]), 1e-3))) - 1)
    return math.floor(span[0] / step + 1e-6) * step, math.ceil(span[1] / step - 1e-6) * step


def apply(rng: Random, pool: Sequence[Pointwise], value: Value, second: Value | None = None) -> Value:
    """Apply an operation of the pool that is useful on these values, and return the result.

    Raises:
        UnsuitableError: none was found.
    """
    for _ in range(40):
        op = rng.choice(pool)
        if (op.jumps and not value.is_input) or (value.node.op == op.name and op.name != "add"):
            continue
        span = NORMAL if second is None else second.span
        if op.name == "div" and span[0] < 0.3 and span[1] > -0.3:
            continue
        numbers = {key: rng.choice(choices) for key, (_, choices) in op.constants.items()}
        found = image(op, numbers, value.span, span)
        if found is None:
            continue
        error = max(value.error, 0.0 if second is None else second.error) * max(found.growth, 0.5) + found.rounding
        if error < LARGEST_ERROR:
            nodes = (value.node,) if second is None else (value.node, second.node)
            constants = {key: Constant(number) for key, number in _changed(numbers, rng).items()}
            low, high = _coarse(found.span)
            return Value(Node(op.name, nodes, constants), (max(low, 0.0) if found.span[0] >= 0 else low, high), error)
    raise UnsuitableError("no operation is of use here")


def draw_program(rng: Random, level: int, leaves: Sequence[Value]) -> Node:
    """Return a program of `level` + 2 operations or a few more that uses every leaf.

    Raises:
        UnsuitableError: this draw gave no program; draw again.
    """
    if len(leaves) == 3 and rng.random() < 0.3:
        return _mixed(rng, leaves)
    if len(leaves) == 1 and rng.random() < 0.2:  # layers behind each other
        value = leaves[0]
        for _ in range(rng.choice((2, 2, 3))):
            value = apply(rng, ACTIVATIONS, value)
        return value.node
    values = [Value(each.node, each.span, each.error, each.is_input) for each in leaves]
    if len(values) == 1 and rng.random() < 0.4:  # a value is combined with one from which it was made
        values.append(values[0])
    operations = level + 2 if level else rng.choice((1, 2, 2))
    while operations > 0 or len(values) > 1:
        is_left = operations >= len(values)
        if len(values) > 1 and (not is_left or rng.random() < 0.4):
            place = rng.randrange(len(values) - 1)
            first, second = values[place : place + 2]
            same = first.node.is_same(second.node)
            if same and not is_left:
                raise UnsuitableError("an operation on a value and itself")
            if not same:
                pool = FREQUENT_COMBINING if rng.random() < 0.6 else COMBINING
                values[place : place + 2] = [apply(rng, pool, first, second)]
                operations -= 1
                continue
        place = rng.randrange(len(values))
        if values[place].node.name and not values[place].is_input:
            if all(value.node.name and not value.is_input for value in values):
                raise UnsuitableError("only learnt values are left")
            continue
        values[place] = apply(rng, FREQUENT if rng.random() < 0.5 else UNARY, values[place])
        operations -= 1
    return values[0].node


def _mixed(rng: Random, leaves: Sequence[Value]) -> Node:
    """Return ``g * a + (1 - g) * b`` for a gate g between 0 and 1."""
    gate, a, b = rng.sample(list(leaves), 3)
    share = apply(rng, (OPERATIONS["sigmoid"], OPERATIONS["sigmoid"], OPERATIONS["hardsigmoid"]), gate)
    if rng.random() < 0.3:
        a = apply(rng, FREQUENT, a)
    rest = Node("subtract_from", (share.node,), {"a": Constant(1.0)})
    return Node("add", (Node("mul", (share.node, a.node)), Node("mul", (rest, b.node))))
