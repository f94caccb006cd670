"""Operations on single elements: alone, in a chain after another kernel, or before a reduction.

``{x}`` is the value in PyTorch and in Triton, ``{a}`` and ``{b}`` are constants, which are numbers in the text or
arguments of ``__init__``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from kernel_coder.tasks.generator.pointwise import BY_NAME, UnsuitableError
from kernel_coder.tasks.generator.repository.draft import NO_DEFAULT, Draft, Kernel
from kernel_coder.tasks.generator.repository.sizes import elements, shape
from kernel_coder.tasks.generator.spellings import CALLS


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on single elements.

    Attributes:
        name: in compositions.
        phrase: in docstrings.
        torch: spellings.
        triton: lines; several are separated by line ends.
        layer: the class in ``torch.nn`` with its arguments, several spellings separated by ``|``; empty: none.
        constants: for each placeholder, the argument's name, PyTorch's default (None: it has none), and values.
    """

    name: str
    phrase: str
    torch: tuple[str, ...]
    triton: str
    layer: str = ""
    constants: tuple[tuple[str, str, float | None, tuple[float, ...]], ...] = ()


def _known(
    name: str, phrase: str, layer: str = "", *constants: tuple[str, str, float | None, tuple[float, ...]]
) -> Operation:
    return Operation(name, phrase, CALLS[name], BY_NAME[name].triton, layer, constants)


ACTIVATIONS = (
    _known("relu", "a ReLU activation", "ReLU()"),
    _known("sigmoid", "a sigmoid", "Sigmoid()"),
    _known("tanh", "a hyperbolic tangent", "Tanh()"),
    _known("silu", "a SiLU activation", "SiLU()"),
    Operation(
        "swish",
        "a Swish activation",
        ("{x} * torch.sigmoid({x})", "torch.sigmoid({x}) * {x}", "{x} * {x}.sigmoid()"),
        "{x} = {x} * tl.sigmoid({x})",
    ),
    _known("gelu", "a GELU activation", "GELU()"),
    Operation(
        "gelu_tanh",
        "the tanh approximation of GELU",
        (
            'F.gelu({x}, approximate="tanh")',
            "0.5 * {x} * (1.0 + torch.tanh(0.7978845608028654 * ({x} + 0.044715 * {x} ** 3)))",
            "{x} * 0.5 * (torch.tanh((2 / math.pi) ** 0.5 * ({x} + 0.044715 * {x}.pow(3.0))) + 1.0)",
            "0.5 * {x} * (1 + torch.tanh(math.sqrt(2 / math.pi) * (torch.pow({x}, 3.0) * 0.044715 + {x})))",
            "{x} * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * ({x} + 0.044715 * torch.pow({x}, 3))))",
            "0.5 * {x} * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * ({x} + 0.044715 * {x} * {x} * {x})))",
        ),
        BY_NAME["gelu_tanh"].triton,
        'GELU(approximate="tanh")',
    ),
    _known("softplus", "a softplus", "Softplus()"),
    _known("softsign", "a softsign", "Softsign()"),
    Operation(
        "softsign_spelt",
        "a softsign",
        ("{x} / (1 + torch.abs({x}))", "{x} / (1.0 + {x}.abs())"),
        BY_NAME["softsign"].triton,
    ),
    _known("hardsigmoid", "a hard sigmoid", "Hardsigmoid()"),
    Operation(
        "hardswish",
        "a hard Swish",
        (
            *(*CALLS["hardswish"], *CALLS["hardswish"]),
            *("{x} * torch.clamp({x} + 3.0, 0.0, 6.0) / 6.0", "{x} * F.relu6({x} + 3) / 6"),
        ),
        BY_NAME["hardswish"].triton,
        "Hardswish()",
    ),
    _known("relu6", "a ReLU capped at six", "ReLU6()"),
    Operation(
        "hardtanh",
        "a hard tanh",
        ("F.hardtanh({x}, {a}, {b})", "F.hardtanh({x}, min_val={a}, max_val={b})"),
        BY_NAME["clamp"].triton,
        "Hardtanh({a}, {b})|Hardtanh(min_val={a}, max_val={b})",
        (("a", "min_val", -1.0, (-1.0, -2.0, -0.5)), ("b", "max_val", 1.0, (1.0, 2.0, 0.5))),
    ),
    _known("elu", "an ELU activation", "ELU(alpha={a})", ("a", "alpha", 1.0, (1.0, 0.5, 1.5))),
    _known("celu", "a CELU activation", "CELU(alpha={a})", ("a", "alpha", 1.0, (0.5, 2.0))),
    _known("selu", "a SELU activation", "SELU()"),
    _known(
        "leaky_relu",
        "a leaky ReLU",
        "LeakyReLU({a})|LeakyReLU(negative_slope={a})",
        ("a", "negative_slope", 0.01, (0.01, 0.05, 0.1, 0.2)),
    ),
    Operation(
        "mish",
        "a Mish activation",
        (
            "F.mish({x})",
            "torch.nn.functional.mish({x})",
            "{x} * torch.tanh(F.softplus({x}))",
            "torch.mul({x}, torch.tanh(F.softplus({x})))",
        ),
        "e = tl.exp(tl.minimum({x}, 20.0))\ne = e * (e + 2.0)\n{x} = {x} * e / (e + 2.0)",
        "Mish()",
    ),
    _known("softshrink", "a soft shrinkage", "Softshrink({a})", ("a", "lambd", 0.5, (0.25, 0.5, 1.0))),
    _known(
        "threshold",
        "a threshold",
        "Threshold({a}, {b})",
        ("a", "threshold", None, (0.25, 0.5)),
        ("b", "value", None, (0.0, -1.0)),
    ),
    Operation(
        "log_sigmoid",
        "a log-sigmoid",
        ("F.logsigmoid({x})", "torch.nn.functional.logsigmoid({x})"),
        "{x} = tl.minimum({x}, 0.0) - tl.log(1.0 + tl.exp(-tl.abs({x})))",
        "LogSigmoid()",
    ),
    Operation(
        "tanhshrink",
        "a tanh shrinkage",
        ("F.tanhshrink({x})", "{x} - torch.tanh({x})"),
        "{x} = {x} - (2.0 * tl.sigmoid(2.0 * {x}) - 1.0)",
        "Tanhshrink()",
    ),
    Operation(
        "squared_relu",
        "a squared ReLU",
        ("torch.relu({x}) ** 2", "F.relu({x}).square()", "torch.square(F.relu({x}))"),
        "{x} = tl.maximum({x}, 0.0)\n{x} = {x} * {x}",
    ),
    Operation(
        "quick_gelu",
        "a sigmoid approximation of GELU",
        ("{x} * torch.sigmoid(1.702 * {x})",),
        "{x} = {x} * tl.sigmoid(1.702 * {x})",
    ),
)

_FACTORS = (0.5, 2.0, 1.5, 0.1, 3.0, 0.25)
ARITHMETIC = (
    _known("scale", "a multiplication by a constant", "", ("a", "scaling_factor", None, _FACTORS)),
    _known("shift", "an addition of a constant", "", ("a", "shift", None, (0.5, 1.0, 2.0, -0.5))),
    Operation(
        "subtract",
        "a subtraction of a constant",
        ("{x} - {a}", "torch.sub({x}, {a})"),
        "{x} = {x} - {a}",
        "",
        (("a", "subtract_value", None, (0.5, 1.0, 2.0, 0.2)),),
    ),
    _known("divide", "a division by a constant", "", ("a", "divisor", None, (2.0, 1.5, 4.0, 10.0))),
    _known(
        "clamp",
        "clamping to a range",
        "",
        ("a", "min_value", None, (-1.0, -0.5, 0.0)),
        ("b", "max_value", None, (1.0, 0.5, 2.0)),
    ),
    _known("clamp_min", "a lower bound", "", ("a", "min_value", None, (-1.0, -0.5, 0.0))),
    _known("clamp_max", "an upper bound", "", ("a", "max_value", None, (1.0, 0.5, 2.0))),
    Operation(
        "min_constant",
        "a minimum with a constant",
        ("torch.min({x}, torch.tensor({a}, device={x}.device))", "torch.clamp({x}, max={a})"),
        "{x} = tl.minimum({x}, {a})",
        "",
        (("a", "constant_value", None, (0.5, 1.0, 2.0)),),
    ),
    _known("square", "squaring"),
    _known("abs", "absolute values"),
    _known("exp", "an exponential"),
)
TABLE = {each.name: each for each in (*ACTIVATIONS, *ARITHMETIC)}

SECOND = {
    "add": ("{x} + {y}", "{x} = {x} + {y}", "an addition"),
    "sub": ("{x} - {y}", "{x} = {x} - {y}", "a subtraction"),
    "mul": ("{x} * {y}", "{x} = {x} * {y}", "a multiplication"),
}
WITH_NUMBER = SECOND | {"min": ("torch.min({x}, {y})", "{x} = tl.minimum({x}, {y})", "a minimum")}
"""What a learnt number can do."""

OTHER_NAMES = {
    "min_val": ("hardtanh_min", "lower"),
    "max_val": ("hardtanh_max", "upper"),
    "min_value": ("clamp_min", "min_val", "lower_bound"),
    "max_value": ("clamp_max", "max_val", "upper_bound"),
    "shift": ("add_value", "offset_value"),
    "scaling_factor": ("scale_factor", "multiply_value", "scale_value"),
    "subtract_value": ("sub_value", "subtract_amount"),
    "divisor": ("divide_value", "division_factor"),
}
"""Other names of the numbers that operations take. Learnt vectors have none of them, so that a name with ``value``
means a number."""

BLOCKS = (1024, 1024, 1024, 2048, 4096)


def flat_kernel(draft: Draft, name: str, pointers: list[tuple[str, str]] | None = None) -> Kernel:
    """Opens a kernel that loads the value so far and stores the result; the operations between are added later."""
    block = draft.rng.choice(BLOCKS)
    source, out = draft.value, draft.variable()
    return draft.open(
        Kernel(
            name=f"{name}_kernel",
            thought="each program loads a block of elements",
            pointers=[("x_ptr", source), ("out_ptr", out), *(pointers or [])],
            scalars=[("n", "n")],
            blocks=[("BLOCK", str(block))],
            head=[
                "i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
                "mask = i < n",
                "x = tl.load(x_ptr + i, mask=mask)",
            ],
            value="x",
            offset="i",
            mask="mask",
            tail=["tl.store(out_ptr + i, x, mask=mask)"],
            setup=[f"{out} = torch.empty_like({source})", f"n = {source}.numel()"],
            grid=f"(triton.cdiv(n, {block}),)",
            out=out,
            is_flat=True,
        )
    )


def apply(draft: Draft, name: str, style: str = "") -> None:
    """Applies an operation to the value so far, in the last kernel if there is one."""
    operation, rng = TABLE[name], draft.rng
    kernel = draft.kernels[-1] if draft.kernels else flat_kernel(draft, name)
    style = style or rng.choice(("call", "call", "layer", "argument"))
    if style == "layer" and not operation.layer:
        style = "call"
    if style == "argument" and not operation.constants:
        style = "call"
    words, numbers, passed = {}, {}, list[str]()
    defaults = [default for _, _, default, _ in operation.constants]
    as_usual = style == "layer" and bool(defaults) and None not in defaults and rng.random() < 0.2
    prefix = f"{name}_" if rng.random() < 0.15 else ""  # of the arguments' names
    for key, argument, default, values in operation.constants:
        value = rng.choice(values)
        is_argument = style == "argument" or (style == "layer" and not as_usual and rng.random() < 0.5)
        if is_argument:
            others = OTHER_NAMES.get(argument, (argument,))
            argument = draft.free(f"{prefix}{argument}" if prefix else rng.choice((argument, argument, *others)))
            draft.argument(argument, (value, value), "float", _default(rng, default, value), _meaning(argument))
            draft.line(f"self.{argument} = {argument}", is_shown=style != "layer")
            short = draft.free(_short(argument))
            kernel.scalars.append((short, f"self.{argument}"))
            passed.append(short)
            words[key], numbers[key] = (argument if style == "layer" else f"self.{argument}"), short
        else:
            words[key] = numbers[key] = repr(default if as_usual else value)
    if style == "layer":
        layer = draft.free(rng.choice((name, "activation", "act", "act_fn")))
        made = rng.choice(operation.layer.split("|"))
        made = f"{made.split('(')[0]}()" if as_usual else made.format(**words)
        draft.line(f"self.{layer} = nn.{made}", is_kept=False)
        draft.steps.append(f"self.{layer}({{x}})")
    else:
        draft.steps.append(_spelt(rng.choice(operation.torch), words))
    kernel.steps += operation.triton.format(x=kernel.value, **numbers).split("\n")
    given = f" with {' and '.join(passed)}" if passed else ""  # a plan for the kernel's arguments
    kernel.fused.append(f"{name.replace('_', ' ')}{given}")
    draft.op(name.removesuffix("_spelt"), operation.phrase)


def _short(argument: str) -> str:
    """Return a kernel's name for a number of the module."""
    known = {
        "min": "low",
        "max": "high",
        "negative": "slope",
        "scaling": "factor",
        "lambd": "cutoff",
        "subtract": "amount",
    }
    words = argument.split("_")
    return next((known[word] for word in words if word in known), f"{words[0]}_")


def _spelt(text: str, words: dict[str, str]) -> str:
    """Return the spelling with its constants filled in and ``{x}`` left."""
    for key, word in words.items():
        text = text.replace(f"{{{key}}}", word)
    return text


def _default(rng: Random, default: float | None, value: float) -> object:

    if default is not None:
        return default
    return NO_DEFAULT if rng.random() < 0.7 else value


def _meaning(argument: str) -> str:
    return {
        "negative_slope": "Slope for negative inputs",
        "alpha": "Scale of the negative part",
        "scaling_factor": "Factor that the values are multiplied by",
        "divisor": "Number that the values are divided by",
        "min_value": "Lower bound",
        "max_value": "Upper bound",
    }.get(argument, argument.replace("_", " ").capitalize())


PARAMETERS = {
    "add": ("bias", "shift", "offset", "add_bias", "sum_tensor", "extra_bias"),
    "mul": ("scale", "multiplier", "weight", "gain", "gamma", "scaling_factor", "multiply_weight"),
    "sub": ("offset", "subtract", "center", "subtrahend"),
}
"""Names of learnt vectors."""


def parameter(draft: Draft, features: str, spatial: int, operation: str = "") -> None:
    """Adds, multiplies or subtracts a learnt vector with an entry for each channel; `features` is its size's name."""
    rng = draft.rng
    kernel = draft.kernels[-1]
    if not kernel.channel:
        raise UnsuitableError("the kernel knows no channels")
    kind = operation or rng.choice(("add", "add", "mul", "sub"))
    name = draft.free({"add": "bias", "mul": "scale", "sub": "offset"}[kind])
    if rng.random() < 0.5:
        name = draft.free(rng.choice(PARAMETERS[kind]))
    ones = ", 1" * spatial
    leading = rng.random() < 0.4  # shape (1, C, 1, 1) instead of (C, 1, 1)
    viewed = f".view(1, -1{ones})" if spatial and rng.random() < 0.12 else ""  # shape (C,)
    if viewed:
        ones, leading, spatial = "", False, 0
    if rng.random() < 0.6:
        extents = draft.both(lambda side: [*[1] * leading, draft.constants[features][side], *[1] * spatial])
        text = f"({'1, ' * leading}{features}{ones}{',' if not leading and not spatial else ''})"
        argument = draft.argument(f"{name}_shape", extents, "tuple", doc=f"Shape of the {name}", text=text)
        draft.line(f"self.{name} = nn.Parameter(torch.{rng.choice(('randn', 'randn', 'ones', 'rand'))}({argument}))")
    else:
        if not any(each.name == features for each in draft.arguments):
            raise UnsuitableError("the number of channels is no argument")
        draft.line(f"self.{name} = nn.Parameter(torch.randn({'1, ' * leading}{features}{ones}))")
    pointer = draft.free(f"{name}_ptr")
    kernel.pointers.append((pointer, f"self.{name}"))
    kernel.steps.append(SECOND[kind][1].format(x=kernel.value, y=kernel.channel.format(p=pointer)))
    kernel.fused.append(f"the {name}")
    draft.steps.append(SECOND[kind][0].format(x="{x}", y=f"self.{name}{viewed}"))
    draft.op(
        f"{kind}_parameter",
        f"{SECOND[kind][2]} of a learnt {name}" if kind == "add" else f"{SECOND[kind][2]} with a learnt {name}",
    )


def scalar_parameter(draft: Draft) -> None:
    """Adds or subtracts a learnt number, multiplies with it, or takes the minimum with it."""
    rng = draft.rng
    kernel = draft.kernels[-1]
    kind = rng.choice(("add", "add", "mul", "mul", "sub", "min"))
    name = draft.free({"add": "sum_weight", "mul": "gain", "sub": "constant", "min": "constant"}[kind])
    if rng.random() < 0.35:
        argument = draft.argument(draft.free(f"{name}_shape"), ((1,), (1,)), "tuple", doc=f"Shape of the {name}")
        draft.line(f"self.{name} = nn.Parameter(torch.{rng.choice(('randn', 'ones', 'rand'))}({argument}))")
    else:
        value = rng.choice((1.0, 0.5, 2.0))
        draft.argument(name, (value, value), "float", doc="First value of the learnt number")
        draft.line(f"self.{name} = nn.Parameter(torch.tensor({name}))")
    pointer = draft.free(f"{name}_ptr")
    kernel.pointers.append((pointer, f"self.{name}"))
    kernel.steps.append(WITH_NUMBER[kind][1].format(x=kernel.value, y=f"tl.load({pointer})"))
    kernel.fused.append(f"the learnt {name}")
    draft.steps.append(WITH_NUMBER[kind][0].format(x="{x}", y=f"self.{name}"))
    draft.op(f"{kind}_scalar_parameter", f"{WITH_NUMBER[kind][2]} with a learnt number")


GATES = ("mish", "hardswish", "tanh", "gelu", "softplus", "sigmoid", "relu", "silu")
"""Activations that a value is multiplied with."""


def gate(draft: Draft) -> None:
    """Multiplies the value with an activation of itself, or adds it to itself."""
    rng, kernel = draft.rng, draft.kernels[-1]
    if rng.random() < 0.3:
        draft.steps.append(rng.choice(("{x} + {x}", "{x} + {x}", "torch.add({x}, {x})")))
        kernel.steps.append(f"{kernel.value} = {kernel.value} + {kernel.value}")
        kernel.fused.append("the addition to itself")
        draft.op("double", "an addition to itself")
        return
    operation = TABLE[rng.choice(GATES)]
    calls = [text for text in operation.torch if re.fullmatch(r"[\w.]+\(\{x\}\)", text)]
    call, before = rng.choice(calls), draft.free("gated")
    draft.steps.append(rng.choice((f"{{x}} * {call}", f"{call} * {{x}}")))
    kernel.steps.append(f"{before} = {kernel.value}")
    kernel.steps += operation.triton.format(x=kernel.value).split("\n")
    kernel.steps.append(f"{kernel.value} = {before} * {kernel.value}")
    kernel.fused.append(f"the product with its {operation.name}")
    draft.op(f"gated_{operation.name}", f"a multiplication with {operation.phrase} of the same value")


def broadcast(x: str, y: str) -> str:
    """Return the line of ``forward`` that gives two inputs one shape, so that a text is right for equal and for
    broadcast shapes."""
    return f"{x}, {y} = (t.contiguous() for t in torch.broadcast_tensors({x}, {y}))"


def second_input(draft: Draft, dims: tuple[str, ...], operation: str = "", first: str = "") -> None:
    """Adds, multiplies or subtracts another input, which has the output's shape.

    With `first`, the input that has the output's shape, the other one may also broadcast to it.
    """
    rng = draft.rng
    kernel = draft.kernels[-1]
    kind = operation or rng.choice(("add", "add", "mul", "sub"))
    name = draft.input(draft.free(rng.choice(("y", "residual", "other", "skip"))), dims, doc="Second tensor")
    if first:
        draft.before[0] = broadcast(first, name)
    else:
        draft.before.append(f"{name} = {name}.contiguous()")
    pointer = draft.free(f"{name}_ptr")
    kernel.pointers.append((pointer, name))
    load = f"tl.load({pointer} + {kernel.offset}, mask={kernel.mask})"
    kernel.steps.append(SECOND[kind][1].format(x=kernel.value, y=load))
    kinds = [kind]
    if not first and rng.random() < 0.3:  # the same tensor twice
        kinds.append("mul" if kind != "mul" else "add")
        kernel.steps.append(SECOND[kinds[1]][1].format(x=kernel.value, y=load))
    for each in kinds:
        what = {"add": "the addition of", "mul": "the product with", "sub": "the difference to"}[each]
        kernel.fused.append(f"{what} {name}")
        draft.steps.append(SECOND[each][0].format(x="{x}", y=name))
        draft.op(f"{each}_input", f"{SECOND[each][2]} with a second tensor")


def narrower(rng: Random, dims: tuple[str, ...]) -> tuple[str, ...]:
    """Return a shape that broadcasts to `dims`: its last sizes, or with a one."""
    if len(dims) == 1:
        return ("1",)
    return rng.choice((dims[1:], (dims[0], *["1"] * (len(dims) - 1)), (*dims[:-1], "1"), ("1", *dims[1:])))


def alone(draft: Draft, name: str) -> None:
    """Generate one operation on a tensor of any shape."""
    dims = shape(draft, elements(draft.rng))
    draft.input(draft.rng.choice(("x", "x", "x", "input", "inputs", "t")), dims, is_first=True)
    apply(draft, name)


def several(draft: Draft, count: int) -> None:
    """Generate a few operations on single elements, some with a second tensor."""
    rng = draft.rng
    dims = shape(draft, elements(rng))
    draft.input("x", dims, is_first=True)
    names = rng.sample(list(TABLE), count)
    place = rng.randrange(count) if rng.random() < 0.4 else -1
    for number, name in enumerate(names):
        if number == place and draft.kernels:
            second_input(draft, narrower(rng, dims) if rng.random() < 0.4 else dims, first="x")
        else:
            apply(draft, name)
