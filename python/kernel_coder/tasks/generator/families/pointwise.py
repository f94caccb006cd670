"""Families that work on single elements: chains, activations, broadcasting, residual connections."""

from __future__ import annotations

from kernel_coder.tasks.generator.families.shapes import any_shape, image, rows_shape
from kernel_coder.tasks.generator.layouts import Flat, Rows, Tape
from kernel_coder.tasks.generator.pointwise import (
    ACTIVATIONS,
    ARITHMETIC,
    BINARY,
    BY_NAME,
    NORMAL,
    TRANSCENDENTAL,
    UNARY,
    Pointwise,
    pick,
)
from kernel_coder.tasks.generator.rowwise import SHAPED, along
from kernel_coder.tasks.generator.sketch import Sketch

MIXING_OPS = tuple(BY_NAME[name] for name in ("add", "sub", "mul", "maximum", "minimum", "add_scaled"))


def elementwise(s: Sketch) -> None:
    """Generate arithmetic and functions of one to three tensors of one shape."""
    shape = any_shape(s)
    tape = _input(s, shape)
    operands = s.rng.sample(("y", "z"), s.rng.choice((0, 0, 1, 1, 2)) if s.level else s.rng.choice((0, 1)))
    count = s.level + 2 - len(operands) + (s.level == 4)
    _interleave(tape, shape, operands, max(count, 1), (*ARITHMETIC, *TRANSCENDENTAL, *ACTIVATIONS[:4]))
    tape.finish()


def activation(s: Sketch) -> None:
    """Generate activation functions, alone, scaled, or gating one half of the features by the other."""
    if s.level and s.rng.random() < 0.25:
        _gated_halves(s)
        return
    shape = any_shape(s)
    tape = _input(s, shape)
    plan = [True] * (1 + s.level // 2) + [False] * (1 + s.level // 3)
    s.rng.shuffle(plan)
    for is_activation in plan:
        tape.chain(1, ACTIVATIONS if is_activation else ARITHMETIC)
    if s.level > 2 and s.rng.random() < 0.5:
        s.tensor("y", shape)
        tape.combine(MIXING_OPS, "y")
    tape.finish()


def broadcast(s: Sketch) -> None:
    """Generate operands of fewer dimensions: by feature, by row, by channel; given, or learnt."""
    by_channel = s.rng.random() < 0.35
    shape = image(s) if by_channel else rows_shape(s)
    tape = _input(s, shape)
    vectors = 1 if s.level < 2 else 2
    plan = [True] * vectors + [False] * (1 + s.level - (vectors - 1))
    s.rng.shuffle(plan)
    names = iter(("weight", "bias") if s.rng.random() < 0.5 else ("bias", "gain"))
    for has_operand in plan:
        if not has_operand:
            tape.chain(1, UNARY)
            continue
        name = next(names)
        if by_channel:
            operand = s.parameter(name, (shape[1], "1", "1"))
            tape.combine(MIXING_OPS, name, passed=operand, kind="channel", label="_channel")
        elif s.rng.random() < 0.6:
            if s.rng.random() < 0.5:
                operand = s.parameter(name, shape[-1:])
                tape.combine(MIXING_OPS, name, passed=operand, kind="last", label="_row")
            else:
                s.tensor(name, shape[-1:])
                tape.combine(MIXING_OPS, name, kind="last", label="_row")
        else:
            s.tensor(name, (*shape[:-1], "1"))
            tape.combine(MIXING_OPS, name, kind="lead", label="_column")
    tape.finish()


def residual(s: Sketch) -> None:
    """Generate a branch added back to what it came from, with a gate or a norm at the higher levels."""
    shape = rows_shape(s)
    with_norm = s.level > 1 and s.rng.random() < 0.7
    s.tensor("x", shape)
    tape = Tape(Rows(s) if with_norm else Flat(s))
    tape.load_input()
    if s.rng.random() < 0.5:
        s.tensor("residual", shape)
        tape.chain(1 + (s.level > 0), UNARY)
        tape.combine((BY_NAME["add"], BY_NAME["add_scaled"]), "residual", label="_residual")
    else:
        s.steps.append("residual = x")
        tape.kernel.loads.append("residual = x")
        tape.chain(1 + s.level // 2, (*ACTIVATIONS, *TRANSCENDENTAL))
        tape.raw = False
        tape.apply(pick(s.rng, "add", "add_scaled", "lerp"), "residual", "residual", "residual")
    if with_norm:
        along(tape, SHAPED[s.rng.choice(("layer_norm", "rms_norm", "softmax"))])
    if s.level > 2:
        s.tensor("gate", shape)
        tape.combine((BY_NAME["gate"], BY_NAME["silu_gate"]), "gate")
    tape.chain(max(s.level - 2, 0), UNARY)
    tape.finish()


def _input(s: Sketch, shape: list[str]) -> Tape:
    s.tensor("x", shape)
    span = (0.0, 1.0) if "rand(" in s.inputs["x"] else NORMAL
    tape = Tape(Flat(s), span)
    tape.load_input()
    return tape


def _interleave(tape: Tape, shape: list[str], operands: list[str], count: int, pool: tuple[Pointwise, ...]) -> None:
    """Append `count` operations of the pool, and between them the operations with the operands."""
    s = tape.sketch
    plan: list[str | None] = [*operands, *[None] * count]
    s.rng.shuffle(plan)
    for name in plan:
        if name is None:
            tape.chain(1, pool)
        else:
            s.tensor(name, shape)
            tape.combine(BINARY, name)


def _gated_halves(s: Sketch) -> None:
    """Write `a * act(b)` for the halves of the last dimension: GLU and its variants."""
    shape = rows_shape(s)
    name = shape[-1]
    s.sizes[name] += s.sizes[name] % 2
    s.tensor("x", shape)
    layout = Rows(s, "x.shape[-1] // 2")
    layout.kernel.head.append("start = x_ptr + row * 2 * n_cols")
    tape = Tape(layout)
    layout.kernel.pointer("x", "x")
    layout.kernel.loads += [
        "x = tl.load(start + cols, mask=mask, other=0.0)",
        "gate = tl.load(start + n_cols + cols, mask=mask, other=0.0)",
    ]
    s.steps.append("x, gate = x.chunk(2, dim=-1)")
    tape.raw = False
    tape.chain(s.level - 1, ACTIVATIONS)
    bound = pick(s.rng, "gate", "silu_gate")
    tape.apply(bound, "gate", "gate", "glu" if bound.op.name == "gate" else "swiglu")
    tape.chain(s.level > 2, ARITHMETIC)
    layout.store("x")
    s.name_kernel(layout.kernel)
    s.contiguous()
    s.forward += [
        "n_cols = x.shape[-1] // 2",
        "n_rows = x.numel() // (2 * n_cols)",
        "out = torch.empty((*x.shape[:-1], n_cols), device=x.device, dtype=x.dtype)",
    ]
    layout.kernel.block("BLOCK", "triton.next_power_of_2(n_cols)")
    s.forward += layout.kernel.launch("(n_rows,)")
