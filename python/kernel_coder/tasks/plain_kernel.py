"""Rewrites one of Inductor's kernels as plain Triton.

Inductor's kernel is a string with its own decorators, helpers and names. ``PlainKernel`` parses it, replaces helpers by
plain ``tl``, inlines literals, aliases and values that are used once, chooses block sizes, and writes the launch.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap

MAX_LINE = 100
"""Upper limit for a line of the rewritten source, in characters."""


class Unsupported(ValueError):
    """The output has a construct that the rewrite does not support; the message names it."""


# Plain Triton versions of helpers in torch's runtime. They have torch's semantics: a maximum with NaN is NaN, and expm1
# and log1p are accurate near zero.
HELPERS = {
    "nan_maximum": """
@triton.jit
def nan_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "nan_minimum": """
@triton.jit
def nan_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "larger": """
@triton.jit
def larger(a, i, b, j):
    a_is_nan = a != a
    b_is_nan = b != b
    tie = (a == b) | (a_is_nan & b_is_nan)
    take_a = (a > b) | (a_is_nan & (b == b)) | (tie & (i < j))
    return tl.where(take_a, a, b), tl.where(take_a, i, j)
""",
    "expm1": """
@triton.jit
def expm1(x):
    u = tl.exp(x)
    exact = (u - 1.0) * x / tl.log(u)
    return tl.where(u == 1.0, x, tl.where(tl.abs(x) < 1.0, exact, u - 1.0))
""",
    "log1p": """
@triton.jit
def log1p(x):
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * x / (u - 1.0))
""",
    "tanh": """
@triton.jit
def tanh(x):
    t = expm1(-2.0 * tl.abs(x))
    y = -t / (t + 2.0)
    return tl.where(x < 0.0, -y, y)
""",
}
_HELPER_USES = {"tanh": ("expm1",)}
_SAME_IN_TL = frozenset(
    ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil", "abs", "fma")
)
_SCANS = ("tl.cumsum", "tl.cumprod")
_REDUCTIONS = ("tl.sum", "tl.max", "tl.min", "tl.reduce", *_SCANS)


def with_dependencies(names: list[str]) -> set[str]:
    result = set(names)
    for name in names:
        result |= set(_HELPER_USES.get(name, ()))
    return result


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def name_of(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def _names(node: ast.AST) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


class _Replace(ast.NodeTransformer):
    def __init__(self, by: Mapping[str, ast.expr]) -> None:
        self.by = by

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.by[node.id]) if node.id in self.by else node


def _replace(node: ast.expr, by: Mapping[str, ast.expr]) -> ast.expr:
    result = _Replace(by).visit(copy.deepcopy(node))
    assert isinstance(result, ast.expr)
    return result


def _literal(node: ast.expr) -> float | int | str | None:
    """Return the number in a literal, or the source of an infinity; None for anything else, including booleans."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _literal(node.operand)
        return -inner if isinstance(inner, int | float) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Call) and name_of(node.func) == "float" and isinstance(node.args[0], ast.Constant):
        return ast.unparse(node)
    return None


class _Plain(ast.NodeTransformer):
    """Rewrites an expression in plain ``tl`` and records the helpers that it needs.

    scalar: the x axis has one element and is removed; reductions give scalars, which are stored at the pointer.
    """

    def __init__(self, *, scalar: bool) -> None:
        self.scalar = scalar
        self.helpers: list[str] = []

    def _helper(self, name: str) -> ast.Name:
        self.helpers.append(name)
        return ast.Name(name)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        whole = isinstance(node.slice, ast.Slice) and node.slice.lower is None and node.slice.upper is None
        return node.value if whole or self.scalar else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Turns ``a + -1 * b`` into ``a - b`` and ``-1 + a`` into ``a - 1``; removes a scalar's offset of zero."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add):
            return node
        left, right = node.left, node.right
        if self.scalar and _literal(right) == 0 and isinstance(left, ast.Name) and "_ptr" in left.id:
            return left
        first, second = _literal(left), _literal(right)
        if isinstance(first, int | float) and first < 0:
            return ast.BinOp(right, ast.Sub(), ast.Constant(-first))
        if isinstance(second, int | float) and second < 0:
            return ast.BinOp(left, ast.Sub(), ast.Constant(-second))
        if isinstance(right, ast.BinOp) and isinstance(right.op, ast.Mult) and _literal(right.left) == -1:
            return ast.BinOp(left, ast.Sub(), right.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        plain = self._call(node)
        if self.scalar and isinstance(plain, ast.Call) and name_of(plain.func) in _REDUCTIONS:
            plain.args[1] = ast.Constant(0)
        return plain

    def _call(self, node: ast.Call) -> ast.expr:
        called = name_of(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and len(node.args) == 1:
            return self._conversion(node, node.func.value, ast.unparse(node.args[0]))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "broadcast_to" and _literal(node.func.value) == 0:
            shape = ", ".join(ast.unparse(a) for a in node.args)
            return ast.Constant(0) if self.scalar else _expression(f"tl.zeros([{shape}], tl.int32)")
        if called == "tl.broadcast_to" and self.scalar:
            return node.args[0]
        if called == "tl.full":
            return self._full(node)
        if called in ("tl.load", "tl.store"):
            return self._memory(node, called)
        for prefix in ("libdevice.", "tl_math."):
            if called.startswith(prefix):
                return self._function(node, called.removeprefix(prefix))
        if called.startswith("triton_helpers."):
            return self._torch_helper(node, called.removeprefix("triton_helpers."))
        if called == "tl.associative_scan":
            combine = name_of(node.args[2])
            known = {"add": "tl.cumsum", "mul": "tl.cumprod"}
            operation = re.sub(r"^_triton_helper_fn_|\d+$", "", combine)
            if operation not in known or not (isinstance(node.args[0], ast.Tuple) and len(node.args[0].elts) == 1):
                raise Unsupported(f"a scan with {combine}")
            return ast.Call(_expression(known[operation]), [node.args[0].elts[0], node.args[1]], [])
        return node

    def _conversion(self, node: ast.Call, value: ast.expr, dtype: str) -> ast.expr:
        number = _literal(value)
        if isinstance(number, int | float):
            return ast.Constant(float(number) if "float" in dtype else int(number))
        inner = value.value if isinstance(value, ast.Subscript) else value
        if isinstance(inner, ast.Call) and name_of(inner.func) in _REDUCTIONS:
            return value  # the reduction already has this type
        indices = "int" in dtype and ".to(" not in ast.unparse(value)
        if indices and all(re.fullmatch(r"[xyr]\d*_?(index|\d+)", name) for name in _names(value)):
            return value  # indices give the same results in either width
        return node

    def _full(self, node: ast.Call) -> ast.expr:
        number, dtype = _literal(node.args[1]), ast.unparse(node.args[2])
        if isinstance(number, str):
            return node.args[1]
        if number is None:
            return node
        return ast.Constant(float(number)) if "float" in dtype else ast.Constant(int(number))

    def _memory(self, node: ast.Call, called: str) -> ast.expr:
        positional = 1 if called == "tl.load" else 2
        mask = node.args[positional] if len(node.args) > positional else ast.Constant(None)
        keywords = [k for k in node.keywords if k.arg == "other"]
        if isinstance(mask, ast.Constant) and mask.value is None:
            return ast.Call(node.func, node.args[:positional], [])
        return ast.Call(node.func, node.args[:positional], [ast.keyword("mask", mask), *keywords])

    def _function(self, node: ast.Call, function: str) -> ast.expr:
        if function in _SAME_IN_TL:
            return ast.Call(_expression(f"tl.{function}"), node.args, [])
        if function in HELPERS:
            return ast.Call(self._helper(function), node.args, [])
        raise Unsupported(f"libdevice.{function} has no plain spelling")

    def _torch_helper(self, node: ast.Call, function: str) -> ast.expr:
        if function in ("maximum", "minimum"):
            first, second = node.args
            if _literal(first) is not None:
                first, second = second, first
            number = _literal(second)
            if isinstance(number, int):
                second = ast.Constant(float(number))
            return ast.Call(self._helper(f"nan_{function}"), [first, second], [])
        if function in ("max2", "min2"):
            helper = "nan_maximum" if function == "max2" else "nan_minimum"
            return ast.Call(_expression("tl.reduce"), [*node.args, self._helper(helper)], [])
        if function == "max_with_index":
            value, index, axis = node.args
            pair = ast.Tuple([value, index], ast.Load())
            return ast.Call(_expression("tl.reduce"), [pair, axis, self._helper("larger")], [])
        if function == "promote_to_tensor":
            return node.args[0]
        raise Unsupported(f"triton_helpers.{function} has no plain spelling")


@dataclass(slots=True)
class _Step:
    """An assignment ``targets = value``, or without targets a call such as ``tl.store``."""

    targets: list[str]
    value: ast.expr

    def text(self) -> str:
        value = ast.unparse(self.value)
        return f"{', '.join(self.targets)} = {value}" if self.targets else value


class PlainKernel:
    """One kernel of Inductor, rewritten from its source string as plain Triton."""

    name = ""

    def __init__(self, source: str) -> None:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        function = functions[-1]
        decorator = function.decorator_list[0]
        assert isinstance(decorator, ast.Call)
        triton_meta = next(k.value for k in decorator.keywords if k.arg == "triton_meta")
        assert isinstance(triton_meta, ast.Dict)
        meta = {ast.literal_eval(k): v for k, v in zip(triton_meta.keys, triton_meta.values, strict=True) if k}
        types: dict[str, str] = ast.literal_eval(meta["signature"])

        self.parameters = [argument.arg for argument in function.args.args]
        self.numels: dict[str, int] = {}
        self.blocks: dict[str, int] = {p: 0 for p in self.parameters if p.endswith("BLOCK")}
        steps = self._straight_line(function.body)
        self._plain = _Plain(scalar=self.numels.get("xnumel") == 1)
        steps = self._fold(steps, types)
        steps = _softmax_maximum(steps)
        steps = _inline_single_uses(_without_dead(steps))
        steps = _renumber(steps)
        used = {name for step in steps for name in _names(step.value)}
        self.helpers = [h for h in dict.fromkeys(self._plain.helpers) if h in used]
        self._choose_blocks()
        self.kept = [p for p in self.parameters if p not in self.blocks and (p in used or types[p].startswith("*"))]
        self.blocks = {block: size for block, size in self.blocks.items() if block in used}
        self.signature = {p: types[p] for p in self.kept} | {b: "constexpr" for b in self.blocks}
        self.head = ", ".join([*self.kept, *(f"{block}: tl.constexpr" for block in self.blocks)])
        lines = [f"    {step.text()}" for step in steps]
        self.body = "\n".join([self.head, *lines])
        self._lines = lines

    @property
    def text(self) -> str:
        return "\n".join(["@triton.jit", wrapped(f"def {self.name}(", self.head, "):"), *self._lines])

    def _straight_line(self, body: list[ast.stmt]) -> list[_Step]:
        """Return the body as steps in which every name is assigned once. Numels and block sizes are removed."""
        steps: list[_Step] = []
        current: dict[str, ast.expr] = {}
        taken: set[str] = set()
        for node in body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                if node.target.id.endswith("BLOCK") and isinstance(node.value, ast.Constant):
                    self.blocks[node.target.id] = int(node.value.value)  # type: ignore[arg-type]
                else:
                    current[node.target.id] = _replace(node.value, current)
            elif isinstance(node, ast.Expr):
                if "tl.device_assert" not in ast.unparse(node):
                    steps.append(_Step([], _replace(node.value, current)))
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                value = _replace(node.value, current)
                target = node.targets[0]
                named = [target] if isinstance(target, ast.Name) else list(getattr(target, "elts", []))
                names = [n.id for n in named if isinstance(n, ast.Name)]
                if names[0] in self.parameters and isinstance(value, ast.Constant):
                    self.numels[names[0]] = int(value.value)  # type: ignore[arg-type]
                    continue
                fresh = []
                for name in names:
                    unique = name
                    while unique in taken:
                        unique += "_"
                    taken.add(unique)
                    fresh.append(unique)
                    current[name] = ast.Name(unique)
                steps.append(_Step(fresh, value))
            else:
                raise Unsupported(f"a kernel with a {type(node).__name__.lower()} statement")
        return steps

    def _fold(self, steps: list[_Step], types: Mapping[str, str]) -> list[_Step]:
        """Rewrites the steps in plain ``tl``; removes aliases, literals and broadcasts without effect."""
        known: dict[str, ast.expr] = {}
        axes = {"xindex": frozenset("x"), "yindex": frozenset("y"), "r0_index": frozenset("r")}
        rank = sum(any(p == f"{axis}numel" for p in self.parameters) for axis in ("x", "y", "r0_"))
        floats: set[str] = set()
        computed: dict[str, str] = {}
        kept: list[_Step] = []
        for step in steps:
            value = self._plain.visit(_replace(step.value, known))
            assert isinstance(value, ast.expr)
            if len(step.targets) == 1:
                name = step.targets[0]
                if isinstance(value, ast.Call) and name_of(value.func) == "tl.broadcast_to":
                    inner = value.args[0]
                    if isinstance(inner, ast.Name) and len(axes.get(inner.id, ())) == rank:
                        value = inner
                if (
                    isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Attribute)
                    and value.func.attr == "to"
                    and ast.unparse(value.args[0]) == "tl.float32"
                    and (name_of(value.func.value) in floats or ".to(tl.float32)" in ast.unparse(value.func.value))
                ):
                    value = value.func.value
                if isinstance(value, ast.Name) or _literal(value) is not None:
                    known[name] = value
                    continue
                text = ast.unparse(value)
                if text in computed:
                    known[name] = ast.Name(computed[text])
                    continue
                if "tl.load" not in text:
                    computed[text] = name
                if name not in axes:
                    axes[name] = self._axes(value, axes)
                if self._is_float(value, types, floats):
                    floats.add(name)
            else:
                for name in step.targets:
                    axes[name] = self._axes(value, axes)
            kept.append(_Step(step.targets, value))
        return kept

    @staticmethod
    def _axes(value: ast.expr, axes: Mapping[str, frozenset[str]]) -> frozenset[str]:
        text = ast.unparse(value)
        read: ast.expr = value
        if isinstance(value, ast.Call) and name_of(value.func) == "tl.load":
            read = value.args[0]
        elif text.startswith("tl.broadcast_to"):
            return frozenset("xr") if "R0_BLOCK" in text else frozenset()
        result = frozenset().union(*(axes.get(name, frozenset()) for name in _names(read)))
        reduced = text.startswith(_REDUCTIONS) and not text.startswith(_SCANS)
        return result - {"r"} if reduced else result

    @staticmethod
    def _is_float(value: ast.expr, types: Mapping[str, str], floats: set[str]) -> bool:
        """Return whether ``value`` is certainly fp32, so that a conversion to fp32 has no effect."""
        if isinstance(value, ast.BinOp):
            sides = (value.left, value.right)
            return any(name_of(side) in floats or isinstance(_literal(side), float) for side in sides)
        text = ast.unparse(value)
        if text.startswith("tl.load("):
            return any(types.get(name) == "*fp32" for name in _names(value))
        return text.endswith(".to(tl.float32)") or text.startswith(("tl.exp(", "tl.log(", "tl.sqrt", "tl.sigmoid("))

    def _choose_blocks(self) -> None:
        def power(n: int) -> int:
            return 1 << max(0, n - 1).bit_length()

        reduced = self.blocks.get("R0_BLOCK", 0)
        for block, size in self.blocks.items():
            if size:
                continue
            numel = self.numels[f"{block[0].lower()}numel"]
            pointwise = 32 if "YBLOCK" in self.blocks else 256
            self.blocks[block] = min(power(numel), max(1, 512 // reduced) if reduced else pointwise)
        if set(self.blocks) - {"XBLOCK", "YBLOCK", "R0_BLOCK"}:
            raise Unsupported(f"blocks {sorted(self.blocks)}")
        if reduced and "YBLOCK" in self.blocks:
            raise Unsupported("a reduction on a two-axis grid")

    def launch(self, arguments: list[str]) -> str:
        """Return the source of the launch, from the arguments that Inductor passed to ``.run`` (pointers and
        numels)."""
        names = [p for p in self.parameters if not p.endswith("BLOCK")]
        passed = [a for name, a in zip(names, arguments, strict=True) if name in self.kept]
        grid = [
            "1" if self.numels[axis] <= size else f"triton.cdiv({self.numels[axis]}, {size})"
            for axis, size in self._grid_axes()
        ]
        tail = [f"{block}={size}" for block, size in self.blocks.items()]
        launch = f"{self.name}[({', '.join(grid)}{',' if len(grid) == 1 else ''})]("
        return wrapped(launch, ", ".join([*passed, *tail]), ")")

    def _grid_axes(self) -> list[tuple[str, int]]:
        return [
            (f"{axis}numel", self.blocks.get(f"{axis.upper()}BLOCK", 1))
            for axis in ("x", "y")
            if f"{axis}numel" in self.numels
        ]


def wrapped(head: str, inside: str, tail: str) -> str:
    """Return the text in one line, or in several if it is longer than ``MAX_LINE``."""
    line = head + inside + tail
    if len(line) <= MAX_LINE:
        return line
    kept_together = inside.replace(": tl.", ":\0tl.")
    rows = wrap(kept_together, MAX_LINE - 4, break_long_words=False, break_on_hyphens=False)
    return "\n".join([head, *(f"    {row}" for row in rows), tail]).replace("\0", " ")


def _softmax_maximum(steps: list[_Step]) -> list[_Step]:
    """Uses ``tl.max``, which drops NaNs, if the maximum is only subtracted: NaNs then still reach the sum."""
    for step in steps:
        text = ast.unparse(step.value)
        if len(step.targets) != 1 or not (text.startswith("tl.reduce(") and "nan_maximum)" in text):
            continue
        name = step.targets[0]
        uses = sum(_names(other.value).count(name) for other in steps)
        subtracted = sum(
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Sub)
            and isinstance(node.right, ast.Name)
            and node.right.id == name
            for other in steps
            for node in ast.walk(other.value)
        )
        if uses == subtracted:
            step.value = _expression(text.replace("tl.reduce(", "tl.max(", 1).replace(", nan_maximum)", ")", 1))
    return steps


def _without_dead(steps: list[_Step]) -> list[_Step]:
    kept: list[_Step] = []
    used: set[str] = set()
    for step in reversed(steps):
        if not step.targets or used & set(step.targets):
            kept.append(step)
            used |= set(_names(step.value))
    return kept[::-1]


def _inline_single_uses(steps: list[_Step]) -> list[_Step]:
    """Inlines arithmetic that is used once, if the line does not become too long."""
    index = 0
    while index < len(steps):
        step = steps[index]
        text = ast.unparse(step.value)
        readers = [other for other in steps if step.targets and step.targets[0] in _names(other.value)]
        foldable = (
            len(step.targets) == 1
            and len(readers) == 1
            and _names(readers[0].value).count(step.targets[0]) == 1
            and not any(call in text for call in ("tl.load", *_REDUCTIONS))
            and step.targets[0] not in ("xindex", "yindex", "r0_index")
        )
        if foldable:
            folded = _replace(readers[0].value, {step.targets[0]: step.value})
            if len(ast.unparse(folded)) + 8 <= MAX_LINE:
                readers[0].value = folded
                del steps[index]
                continue
        index += 1
    return steps


def _renumber(steps: list[_Step]) -> list[_Step]:
    """Renames temporaries to tmp0, tmp1, ... in the order of assignment."""
    names: dict[str, ast.expr] = {}
    for step in steps:
        for target in step.targets:
            if target.startswith("tmp"):
                names[target] = ast.Name(f"tmp{len(names)}")
    fresh = {old: ast.unparse(new) for old, new in names.items()}
    return [_Step([fresh.get(t, t) for t in step.targets], _replace(step.value, names)) for step in steps]
