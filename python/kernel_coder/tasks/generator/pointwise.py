"""The operations on single elements: each knows its PyTorch spellings and its one Triton spelling.

`{x}` is the running value, `{y}` a second operand, `{a}` and `{b}` constants. What an operation does to a range of
values is not declared, it is computed: :func:`image` runs the Triton text on numbers, so that a chain never saturates,
overflows or does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from types import CodeType, SimpleNamespace

Range = tuple[float, float]
NORMAL: Range = (-3.5, 3.5)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """One operation. `constants` maps a placeholder to the name it has as an argument, and the values it may take."""

    name: str
    torch: tuple[str, ...]
    triton: str
    module: str | None = None
    constants: Mapping[str, tuple[str, tuple[float, ...]]] = field(default_factory=dict)
    jumps: bool = False  # not continuous: sound only on the inputs themselves, where both sides see the same bits

    @property
    def is_binary(self) -> bool:
        return "{y}" in self.triton


def _op(
    name: str, torch: str, triton: str, *, module: str | None = None, jumps: bool = False, **constants: object
) -> Pointwise:
    """`torch` holds the spellings, parted by ` | `; a constant is `a=("its name", 0.1, 0.2)`."""
    table = {key: (value[0], tuple(value[1:])) for key, value in constants.items() if isinstance(value, tuple)}
    return Pointwise(name, tuple(torch.split(" | ")), triton, module, table, jumps)


ACTIVATIONS = (
    _op("relu", "torch.relu({x}) | F.relu({x}) | {x}.relu()", "{x} = tl.maximum({x}, 0.0)", module="nn.ReLU()"),
    _op("sigmoid", "torch.sigmoid({x}) | {x}.sigmoid()", "{x} = tl.sigmoid({x})", module="nn.Sigmoid()"),
    _op("tanh", "torch.tanh({x}) | {x}.tanh()", "{x} = 2.0 * tl.sigmoid(2.0 * {x}) - 1.0", module="nn.Tanh()"),
    _op("silu", "F.silu({x}) | {x} * torch.sigmoid({x})", "{x} = {x} * tl.sigmoid({x})", module="nn.SiLU()"),
    _op(
        "gelu",
        "F.gelu({x})",
        "{x} = 0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))",
        module="nn.GELU()",
    ),
    _op(
        "gelu_tanh",
        'F.gelu({x}, approximate="tanh")',
        "{x} = {x} * tl.sigmoid(1.5957691216057308 * ({x} + 0.044715 * {x} * {x} * {x}))",
        module='nn.GELU(approximate="tanh")',
    ),
    _op(
        "softplus",
        "F.softplus({x})",
        "{x} = tl.where({x} > 20.0, {x}, tl.log(1.0 + tl.exp({x})))",
        module="nn.Softplus()",
    ),
    _op("softsign", "F.softsign({x}) | {x} / (1 + {x}.abs())", "{x} = {x} / (1.0 + tl.abs({x}))"),
    _op(
        "hardsigmoid",
        "F.hardsigmoid({x})",
        "{x} = tl.minimum(tl.maximum({x} / 6.0 + 0.5, 0.0), 1.0)",
        module="nn.Hardsigmoid()",
    ),
    _op(
        "hardswish",
        "F.hardswish({x})",
        "{x} = {x} * tl.minimum(tl.maximum({x} + 3.0, 0.0), 6.0) / 6.0",
        module="nn.Hardswish()",
    ),
    _op("relu6", "F.relu6({x})", "{x} = tl.minimum(tl.maximum({x}, 0.0), 6.0)", module="nn.ReLU6()"),
    _op(
        "hardtanh",
        "F.hardtanh({x}) | torch.clamp({x}, -1.0, 1.0)",
        "{x} = tl.minimum(tl.maximum({x}, -1.0), 1.0)",
        module="nn.Hardtanh()",
    ),
    _op(
        "elu",
        "F.elu({x}, alpha={a})",
        "{x} = tl.where({x} > 0.0, {x}, {a} * (tl.exp({x}) - 1.0))",
        module="nn.ELU(alpha={a})",
        a=("alpha", 0.5, 1.0, 1.5),
    ),
    _op(
        "celu",
        "F.celu({x}, alpha={a})",
        "{x} = tl.where({x} > 0.0, {x}, {a} * (tl.exp({x} / {a}) - 1.0))",
        module="nn.CELU(alpha={a})",
        a=("alpha", 0.5, 2.0),
    ),
    _op(
        "selu",
        "F.selu({x}) | torch.selu({x})",
        "{x} = 1.0507009873554805 * tl.where({x} > 0.0, {x}, 1.6732632423543772 * (tl.exp({x}) - 1.0))",
        module="nn.SELU()",
    ),
    _op(
        "leaky_relu",
        "F.leaky_relu({x}, negative_slope={a}) | torch.where({x} > 0, {x}, {a} * {x})",
        "{x} = tl.where({x} > 0.0, {x}, {a} * {x})",
        module="nn.LeakyReLU({a})",
        a=("negative_slope", 0.01, 0.05, 0.1, 0.2),
    ),
    _op(
        "mish",
        "F.mish({x}) | {x} * torch.tanh(F.softplus({x}))",
        "softplus = tl.where({x} > 20.0, {x}, tl.log(1.0 + tl.exp({x})))\n"
        "{x} = {x} * (2.0 * tl.sigmoid(2.0 * softplus) - 1.0)",
        module="nn.Mish()",
    ),
    _op(
        "logsigmoid",
        "F.logsigmoid({x})",
        "{x} = tl.minimum({x}, 0.0) - tl.log(1.0 + tl.exp(-tl.abs({x})))",
        module="nn.LogSigmoid()",
    ),
    _op(
        "softshrink",
        "F.softshrink({x}, {a})",
        "{x} = tl.where({x} > {a}, {x} - {a}, tl.where({x} < -{a}, {x} + {a}, 0.0))",
        module="nn.Softshrink({a})",
        a=("cutoff", 0.25, 0.5, 1.0),
    ),
    _op(
        "hardshrink",
        "F.hardshrink({x}, {a})",
        "{x} = tl.where(tl.abs({x}) > {a}, {x}, 0.0)",
        module="nn.Hardshrink({a})",
        jumps=True,
        a=("cutoff", 0.25, 0.5, 1.0),
    ),
    _op(
        "threshold",
        "F.threshold({x}, {a}, {b}) | torch.where({x} > {a}, {x}, {b})",
        "{x} = tl.where({x} > {a}, {x}, {b})",
        module="nn.Threshold({a}, {b})",
        jumps=True,
        a=("cutoff", 0.25, 0.5, 1.0),
        b=("value", 0.0, -1.0, 2.0),
    ),
    _op("tanhshrink", "F.tanhshrink({x}) | {x} - torch.tanh({x})", "{x} = {x} - (2.0 * tl.sigmoid(2.0 * {x}) - 1.0)"),
)

ARITHMETIC = (
    _op("scale", "{x} * {a} | {a} * {x}", "{x} = {x} * {a}", a=("scale", 0.25, 0.5, 0.7, 1.5, 2.0, 3.0, -1.5)),
    _op("shift", "{x} + {a} | {a} + {x}", "{x} = {x} + {a}", a=("shift", 0.1, 0.5, 1.0, 2.0, -0.3, -1.0)),
    _op("divide", "{x} / {a}", "{x} = {x} / {a}", a=("divisor", 1.5, 2.0, 3.0, 4.0)),
    _op("subtract_from", "{a} - {x}", "{x} = {a} - {x}", a=("offset", 0.5, 1.0, 2.0)),
    _op("negate", "-{x}", "{x} = -{x}"),
    _op("square", "{x} * {x} | {x}**2 | torch.square({x}) | {x}.pow(2)", "{x} = {x} * {x}"),
    _op("cube", "{x} * {x} * {x} | {x}**3 | torch.pow({x}, 3)", "{x} = {x} * {x} * {x}"),
    _op("abs", "torch.abs({x}) | {x}.abs()", "{x} = tl.abs({x})"),
    _op(
        "clamp",
        "torch.clamp({x}, {a}, {b}) | torch.clamp({x}, min={a}, max={b}) | {x}.clamp({a}, {b})",
        "{x} = tl.minimum(tl.maximum({x}, {a}), {b})",
        a=("min_value", -2.0, -1.5, -0.5, 0.1),
        b=("max_value", 0.5, 0.8, 1.5, 2.0),
    ),
    _op(
        "clamp_min", "torch.clamp({x}, min={a}) | {x}.clamp(min={a})", "{x} = tl.maximum({x}, {a})",
        a=("min_value", -1.0, -0.5, 0.2, 0.5),
    ),
    _op(
        "clamp_max", "torch.clamp({x}, max={a}) | {x}.clamp(max={a})", "{x} = tl.minimum({x}, {a})",
        a=("max_value", 0.5, 1.0, 1.5),
    ),
)  # fmt: skip

TRANSCENDENTAL = (
    _op("exp", "torch.exp({x}) | {x}.exp()", "{x} = tl.exp({x})"),
    _op("sin", "torch.sin({x}) | {x}.sin()", "{x} = tl.sin({x})"),
    _op("cos", "torch.cos({x}) | {x}.cos()", "{x} = tl.cos({x})"),
    _op(
        "sqrt_abs", "torch.sqrt(torch.abs({x}) + {a}) | ({x}.abs() + {a}).sqrt()", "{x} = tl.sqrt(tl.abs({x}) + {a})",
        a=("eps", 0.1, 0.5, 1.0),
    ),
    _op("log1p_abs", "torch.log(1 + torch.abs({x})) | torch.log1p({x}.abs())", "{x} = tl.log(1.0 + tl.abs({x}))"),
    _op("gaussian", "torch.exp(-{x} * {x}) | torch.exp(-({x}**2))", "{x} = tl.exp(-{x} * {x})"),
    _op("inverse_square", "1 / (1 + {x} * {x}) | 1.0 / (1.0 + {x}**2)", "{x} = 1.0 / (1.0 + {x} * {x})"),
    _op(
        "rsqrt_square", "torch.rsqrt({x} * {x} + {a}) | 1 / torch.sqrt({x}**2 + {a})",
        "{x} = tl.rsqrt({x} * {x} + {a})", a=("eps", 0.5, 1.0),
    ),
)  # fmt: skip

BINARY = (
    _op("add", "{x} + {y}", "{x} = {x} + {y}"),
    _op("sub", "{x} - {y}", "{x} = {x} - {y}"),
    _op("mul", "{x} * {y}", "{x} = {x} * {y}"),
    _op("maximum", "torch.maximum({x}, {y})", "{x} = tl.maximum({x}, {y})"),
    _op("minimum", "torch.minimum({x}, {y})", "{x} = tl.minimum({x}, {y})"),
    _op("gate", "{x} * torch.sigmoid({y})", "{x} = {x} * tl.sigmoid({y})"),
    _op("silu_gate", "{x} * F.silu({y})", "{x} = {x} * {y} * tl.sigmoid({y})"),
    _op("soft_divide", "{x} / (1 + torch.abs({y})) | {x} / (1 + {y}.abs())", "{x} = {x} / (1.0 + tl.abs({y}))"),
    _op("square_diff", "({x} - {y}) ** 2 | torch.square({x} - {y})", "diff = {x} - {y}\n{x} = diff * diff"),
    _op("abs_diff", "torch.abs({x} - {y}) | ({x} - {y}).abs()", "{x} = tl.abs({x} - {y})"),
    _op(
        "lerp", "torch.lerp({x}, {y}, {a}) | {x} + {a} * ({y} - {x})", "{x} = {x} + {a} * ({y} - {x})",
        a=("mix", 0.1, 0.3, 0.75),
    ),
    _op("add_scaled", "{x} + {a} * {y}", "{x} = {x} + {a} * {y}", a=("alpha", 0.1, 0.5, 2.0)),
    _op(
        "hypot", "torch.sqrt({x} * {x} + {y} * {y} + {a}) | torch.sqrt({x}**2 + {y}**2 + {a})",
        "{x} = tl.sqrt({x} * {x} + {y} * {y} + {a})", a=("eps", 0.1, 1.0),
    ),
    _op(
        "select", "torch.where({y} > 0, {x}, {a} * {x})", "{x} = tl.where({y} > 0.0, {x}, {a} * {x})",
        a=("slope", 0.0, 0.1, -1.0),
    ),
)  # fmt: skip

UNARY = (*ACTIVATIONS, *ARITHMETIC, *TRANSCENDENTAL)
ALL = (*UNARY, *BINARY)
BY_NAME = {op.name: op for op in ALL}


@dataclass(frozen=True, slots=True)
class Bound:
    """An operation with its constants chosen."""

    op: Pointwise
    values: Mapping[str, float]


# What an operation does to a range of values --------------------------------------------------------------------------

_TL = SimpleNamespace(
    exp=lambda v: math.exp(min(v, 300.0)),
    log=lambda v: math.log(v) if v > 0 else -math.inf,
    sqrt=lambda v: math.sqrt(max(v, 0.0)),
    rsqrt=lambda v: 1.0 / math.sqrt(v),
    sin=math.sin,
    cos=math.cos,
    erf=math.erf,
    abs=abs,
    sigmoid=lambda v: 1.0 / (1.0 + math.exp(-max(min(v, 300.0), -300.0))),
    maximum=max,
    minimum=min,
    where=lambda condition, a, b: a if condition else b,
)
_POINTS = 33


@cache
def _compiled(triton: str) -> CodeType:
    text = triton.format(x="x", y="y", a="a", b="b")
    return compile(text, "<pointwise>", "exec")


def evaluate(op: Pointwise, values: Mapping[str, float], x: float, y: float = 0.0) -> float:
    """The operation on numbers.

    >>> evaluate(BY_NAME["leaky_relu"], {"a": 0.1}, -2.0)
    -0.2
    """
    names: dict[str, object] = {"tl": _TL, "x": x, "y": y, **values}
    exec(_compiled(op.triton), names)
    result = names["x"]
    assert isinstance(result, float)
    return result


def image(op: Pointwise, values: Mapping[str, float], x: Range, y: Range = NORMAL) -> Range | None:
    """The range that the operation maps `x` to; None where it would be of no use there.

    No use: it changes next to nothing, flattens most values into one, leaves a narrow band or large values, or turns
    the rounding error of its argument into a much larger one.
    """
    grid = [x[0] + (x[1] - x[0]) * i / (_POINTS - 1) for i in range(_POINTS)]
    seconds = [y[0], (y[0] + y[1]) / 3, y[1]] if op.is_binary else [0.0]
    low, high, changed, flat, steepest = math.inf, -math.inf, 0, 0, 0.0
    for second in seconds:
        before = None
        for value in grid:
            now = evaluate(op, values, value, second)
            low, high = min(low, now), max(high, now)
            changed += abs(now - value) > 1e-2 * max(abs(x[0]), abs(x[1]))
            if before is not None:
                flat += now == before
                steepest = max(steepest, abs(now - before) / (grid[1] - grid[0]))
            before = now
    largest = max(abs(low), abs(high))
    total = len(grid) * len(seconds)
    narrow = high - low < 0.05 or high - low < 0.1 * largest
    if narrow or largest > 60.0 or changed < 0.15 * total or flat > 0.7 * total:
        return None
    if steepest * max(abs(x[0]), abs(x[1])) > 6.0 * largest and not op.jumps:
        return None
    return low, high


def pick(rng: Random, *names: str) -> Bound:
    """One of the named operations, with constants, whatever the range."""
    op = BY_NAME[rng.choice(names)]
    return Bound(op, {key: rng.choice(choices) for key, (_, choices) in op.constants.items()})


def draw(
    rng: Random, pool: tuple[Pointwise, ...], x: Range, y: Range = NORMAL, *, avoid: str = "", raw: bool = False
) -> tuple[Bound, Range]:
    """An operation from the pool that is of use on this range, with constants, and the range it leaves.

    `raw` says that the range is an input's own, where an operation that jumps is sound.
    """
    for _ in range(200):
        op = rng.choice(pool)
        values = {key: rng.choice(choices) for key, (_, choices) in op.constants.items()}
        if op.name == avoid or (op.jumps and not raw):
            continue
        if (found := image(op, values, x, y)) is not None:
            return Bound(op, values), found
    raise LookupError(f"no operation of {', '.join(op.name for op in pool)} is of use on {x}")
