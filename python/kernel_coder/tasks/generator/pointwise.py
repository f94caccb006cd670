"""The operations on single elements, each with its PyTorch spellings and its one Triton spelling.

`{x}` is the running value, `{y}` a second operand, `{a}` and `{b}` constants. The effect of an operation on a range of
values is computed: :func:`image` runs the Triton text on numbers, so that a chain never saturates, overflows or has no
effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Range = tuple[float, float]
NORMAL: Range = (-3.0, 3.0)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An operation. `constants` maps a placeholder to its name as an argument, and its possible values."""

    name: str
    torch: tuple[str, ...]
    triton: str
    module: str | None = None
    constants: Mapping[str, tuple[str, tuple[float, ...]]] = field(default_factory=dict)
    jumps: bool = False  # not continuous: allowed only on the inputs themselves, which have the same bits on both sides

    @property
    def is_binary(self) -> bool:
        return "{y}" in self.triton


def _op(
    name: str, torch: str, triton: str, *, module: str | None = None, jumps: bool = False, **constants: object
) -> Pointwise:
    """Make an operation. `torch` holds the spellings, separated by ` | `; a constant is `a=("its name", 0.1, 0.2)`."""
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


def _namespace(dtype: type[np.floating[Any]]) -> SimpleNamespace:
    """`tl` on arrays. Functions are computed in float64 and rounded, so that every machine gets the same bits."""

    def rounded(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return lambda v: function(np.asarray(v, np.float64)).astype(dtype)

    one = dtype(1.0)
    exp = rounded(np.exp)
    return SimpleNamespace(
        exp=exp,
        log=rounded(np.log),
        sqrt=rounded(np.sqrt),
        rsqrt=rounded(lambda v: 1.0 / np.sqrt(v)),
        sin=rounded(np.sin),
        cos=rounded(np.cos),
        erf=rounded(lambda v: np.array([math.erf(each) for each in v])),
        abs=np.abs,
        sigmoid=lambda v: one / (one + exp(-v)),
        maximum=np.maximum,
        minimum=np.minimum,
        where=np.where,
    )


_TL: dict[type[np.floating[Any]], SimpleNamespace] = {
    np.float32: _namespace(np.float32),
    np.float64: _namespace(np.float64),
}
_POINTS = 33


@cache
def _compiled(triton: str) -> CodeType:
    text = triton.format(x="x", y="y", a="a", b="b")
    return compile(text, "<pointwise>", "exec")


def evaluate(
    op: Pointwise,
    values: Mapping[str, float],
    x: Array,
    y: Array | float = 0.0,
    dtype: type[np.floating[Any]] = np.float64,
) -> Array:
    """Return the operation's Triton text on arrays.

    >>> evaluate(BY_NAME["leaky_relu"], {"a": 0.1}, np.array([-2.0, 3.0])).tolist()
    [-0.2, 3.0]
    """
    constants = {key: dtype(value) for key, value in values.items()}
    names: dict[str, Any] = {"tl": _TL[dtype], "x": np.asarray(x, dtype), "y": np.asarray(y, dtype), **constants}
    with np.errstate(all="ignore"):
        exec(_compiled(op.triton), names)
    result: Array = names["x"]
    return result


@dataclass(frozen=True, slots=True)
class Image:
    """The effect of an operation on a range: the new range, the factor of an earlier error, and the error by rounding.

    Errors are relative to the largest value.
    """

    span: Range
    growth: float
    rounding: float


def image(op: Pointwise, values: Mapping[str, float], x: Range, y: Range = NORMAL) -> Image | None:
    """Return the effect of an operation on values from `x`; None if the operation is useless there.

    It is useless if it changes almost nothing, maps most values to one, or leaves a narrow band or large values.
    """
    key = (op.name, tuple(values.items()), x, y)
    if key not in _IMAGES:
        if len(_IMAGES) > 20000:
            _IMAGES.clear()
        _IMAGES[key] = _image(op, values, x, y)
    return _IMAGES[key]


_IMAGES: dict[object, Image | None] = {}


def _image(op: Pointwise, values: Mapping[str, float], x: Range, y: Range) -> Image | None:
    grid = np.linspace(x[0], x[1], _POINTS)
    seconds = (y[0], (y[0] + y[1]) / 3, y[1]) if op.is_binary else (0.0,)
    exact = np.stack([evaluate(op, values, grid, second) for second in seconds])
    single = np.stack([evaluate(op, values, grid, second, np.float32) for second in seconds])
    if not np.isfinite(exact).all():
        return None
    low, high = float(exact.min()), float(exact.max())
    largest, before = max(abs(low), abs(high)), max(abs(x[0]), abs(x[1]))
    changed = float((np.abs(exact - grid) > 1e-2 * before).mean())
    steps = np.abs(np.diff(exact, axis=1))
    if (
        high - low < 0.25 * largest
        or largest < 1e-3
        or largest > 60.0
        or changed < 0.15
        or float((steps == 0).mean()) > 0.6
    ):
        return None
    growth = 1.0 if op.jumps else float(steps.max()) / (grid[1] - grid[0]) * before / largest
    # The rounding of the grid to float32 does not count as an error of the operation.
    same = np.stack([evaluate(op, values, grid.astype(np.float32), second) for second in seconds])
    return Image((low, high), growth, float(np.abs(single - same).max()) / largest)


def pick(rng: Random, *names: str) -> Bound:
    """Return one of the named operations, with constants, for any range."""
    op = BY_NAME[rng.choice(names)]
    return Bound(op, {key: rng.choice(choices) for key, (_, choices) in op.constants.items()})


@dataclass(frozen=True, slots=True)
class Drawn:
    """An operation with its constants, and its effect."""

    bound: Bound
    span: Range
    error: float


class UnsuitableError(Exception):
    """This composition would be too sensitive to rounding, or no operation fits; draw again."""


LARGEST_ERROR = 6e-7
"""Upper limit for the estimated error of the running value, relative to its largest element. The check of a pair allows
2e-6."""


def draw(
    rng: Random,
    pool: tuple[Pointwise, ...],
    span: Range,
    error: float,
    *,
    second: Range = NORMAL,
    avoid: str = "",
    raw: bool = False,
) -> Drawn:
    """Return an operation from the pool that is useful on this range, with constants, and its effect.

    `error` is the running value's error so far. `raw`: the range is that of an input, where an operation that jumps is
    allowed, because both sides have the same bits.
    """
    for _ in range(60):
        bound = pick(rng, *(op.name for op in pool))
        if bound.op.name == avoid or (bound.op.jumps and not raw):
            continue
        found = image(bound.op, bound.values, span, second)
        if found is not None and (after := error * max(found.growth, 0.5) + found.rounding) < LARGEST_ERROR:
            return Drawn(bound, found.span, after)
    raise UnsuitableError(f"no operation is of use on {span}")
