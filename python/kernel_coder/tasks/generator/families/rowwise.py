"""Families that work along an axis: reductions, softmax, norms, scans, distances."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_coder.tasks.generator.families.shapes import columns_shape, rows_shape
from kernel_coder.tasks.generator.layouts import Columns, Layout, Rows, Tape
from kernel_coder.tasks.generator.pointwise import ARITHMETIC, BY_NAME, NORMAL, UNARY, pick
from kernel_coder.tasks.generator.rowwise import REDUCTIONS, SHAPED, RowOp, along
from kernel_coder.tasks.generator.sketch import Sketch

GENTLE = tuple(op for op in UNARY if op.name not in ("cube", "exp", "square"))


def reduction(s: Sketch) -> None:
    """Generate one axis reduced, with operations before and after."""
    tape, dim = _axis_tape(s)
    before, after = _split(s, s.level + 1)
    op = REDUCTIONS[s.rng.choice(list(REDUCTIONS))]
    if op.integer:  # an index is reliable only if there is no rounding before the comparison; nothing may follow it
        tape.apply(pick(s.rng, "abs", "negate"))
    else:
        tape.chain(before, UNARY)
    keepdim = s.rng.random() < 0.3
    along(tape, op, dim=dim, keepdim=keepdim)
    if not op.integer:
        tape.chain(after, ARITHMETIC if s.level < 2 else UNARY)
    tape.finish_reduced(keepdim, "torch.int64" if op.integer else "x.dtype")


def softmax(s: Sketch) -> None:
    """Generate softmax and log-softmax over any axis, of inputs both mild and large."""
    tape, dim = _axis_tape(s, "torch.randn({shape}) * 50" if s.rng.random() < 0.2 else None)
    sharp = "* 50" in s.inputs["x"]
    op = SHAPED[s.rng.choice(("softmax", "softmax", "log_softmax"))]
    before, after = _split(s, s.level + 1)
    if sharp:  # overflows without the subtraction of the maximum
        before, after = 0, before + after
    _around(tape, op, dim, before, after)


def layer_norm(s: Sketch) -> None:
    """Generate layer norm over the last dimension, with nn.LayerNorm's or no parameters."""
    shape = rows_shape(s)
    s.tensor("x", shape)
    tape = Tape(Rows(s))
    tape.load_input()
    before, after = _split(s, s.level + 1)
    if s.level > 1:
        before, after = _residual_operand(tape, shape, before, after)
    tape.chain(before, GENTLE)
    if s.rng.random() < 0.7:
        affine_norm(tape, "layer_norm", shape[-1])
    else:
        along(tape, SHAPED["layer_norm"])
    tape.chain(after, UNARY)
    tape.finish()


def rms_norm(s: Sketch) -> None:
    """Generate RMS norm with and without a learnt gain."""
    shape = rows_shape(s)
    s.tensor("x", shape)
    tape = Tape(Rows(s))
    tape.load_input()
    before, after = _split(s, s.level + 1)
    if s.level > 1:
        before, after = _residual_operand(tape, shape, before, after)
    tape.chain(before, GENTLE)
    choice = s.rng.random()
    if choice < 0.3:
        affine_norm(tape, "rms_norm", shape[-1])
    else:
        along(tape, SHAPED["rms_norm"])
        if choice < 0.7:
            weight = s.parameter("weight", shape[-1:])
            tape.apply(pick(s.rng, "mul"), tape.operand("weight", weight, "last"), weight, "mul_row")
    tape.chain(after, UNARY)
    tape.finish()


def group_norm(s: Sketch) -> None:
    """Generate group norm and instance norm of images and sequences: a row is a group of channels."""
    rng = s.rng
    by_group = rng.random() < 0.65
    groups = rng.choice((1, 2, 3))
    shape = [s.size("batch_size", rng.choice((1, 2))), s.size("channels", groups * rng.choice((2, 3)))]
    if rng.random() < 0.5:
        shape.append(s.size("length", rng.choice((20, 37, 50, 64))))
    else:
        shape += [s.size("height", rng.choice((4, 6, 7))), s.size("width", rng.choice((5, 8, 9)))]
    s.tensor("x", shape)
    layout = Rows(s, "x.shape[1] // groups * plane" if by_group else "x[0, 0].numel()")
    tape = Tape(layout)
    tape.load_input()
    before, after = _split(s, s.level + 1)
    tape.chain(before, GENTLE)
    s.argument("channels")
    if by_group:
        s.argument("groups" if rng.random() < 0.5 else "num_groups", s.size("groups", groups))
        s.state.append(f"self.norm = nn.GroupNorm({list(s.arguments)[-1]}, channels)")
    else:
        s.modules.append(f"self.norm = nn.InstanceNorm{len(shape) - 2}d(channels)")
    s.step("self.norm(x)")
    along(tape, SHAPED["layer_norm"], spell=False)
    s.ops[-1] = "group_norm" if by_group else "instance_norm"
    if by_group:
        _channel_affine(tape)
    tape.chain(after, UNARY)
    layout.store("x")
    s.name_kernel(tape.kernel)
    s.contiguous()
    if by_group:
        s.forward += ["groups = self.norm.num_groups", "plane = x[0, 0].numel()"]
    layout.launch()


def _channel_affine(tape: Tape) -> None:
    """Append the gain and bias of each element's channel, for rows that hold several channels."""
    kernel = tape.kernel
    kernel.scalar("plane")
    kernel.scalar("groups")
    kernel.scalar("channels", "x.shape[1]")
    kernel.head.append("channel = row % groups * (channels // groups) + cols // plane")
    for name in ("weight", "bias"):
        pointer = kernel.pointer(name, f"self.norm.{name}")
        kernel.loads.append(f"{name} = tl.load({pointer} + channel, mask=mask, other=0.0)")
    tape.say("{x} = {x} * weight + bias")
    tape.pad = None


def normalize(s: Sketch) -> None:
    """Generate rows scaled or shifted by a statistic of their own."""
    tape, dim = _axis_tape(s)
    names = ("center", "standardize", "l2_normalize", "l1_normalize", "absmax_normalize", "min_max", "subtract_max")
    before, after = _split(s, s.level + 1)
    _around(tape, SHAPED[s.rng.choice(names)], dim, before, after)


def cumulative(s: Sketch) -> None:
    """Generate running sums, forward, backward, exclusive."""
    tape, dim = _axis_tape(s, along_rows=0.75)
    before, after = _split(s, s.level + 1)
    names = ["cumsum", "cumsum", "exclusive_cumsum", "suffix_sum", "reverse_cumsum"]
    _around(tape, SHAPED[s.rng.choice(names)], dim, before, after)


def distance(s: Sketch) -> None:
    """Generate distances and similarities between the rows of two tensors."""
    shape = rows_shape(s, 2)
    s.tensor("x", shape, "torch.randn({shape})")
    s.tensor("y", shape, "torch.randn({shape})")
    tape = Tape(Rows(s))
    tape.load_input()
    tape.operand("y")
    before, after = _split(s, s.level + 1)
    tape.chain(before, GENTLE)
    name, torch, triton, span = s.rng.choice(_DISTANCES)
    tape.need("0.0")
    tape.say(triton)
    tape.settle(span)
    s.step(s.rng.choice(torch))
    s.ops.append(name)
    tape.chain(after, ARITHMETIC if s.level < 2 else UNARY)
    tape.finish_reduced(False)


_DISTANCES = (
    (
        "dot",
        ("(x * y).sum(dim=-1)", "torch.sum(x * y, dim=-1)"),
        "{x} = tl.sum({x} * y, axis=0)",
        (-15.0, 15.0),
    ),
    (
        "squared_distance",
        ("((x - y) ** 2).sum(dim=-1)", "(x - y).pow(2).sum(dim=-1)"),
        "diff = {x} - y\n{x} = tl.sum(diff * diff, axis=0)",
        (20.0, 55.0),
    ),
    (
        "euclidean_distance",
        ("torch.sqrt(((x - y) ** 2).sum(dim=-1))", "torch.norm(x - y, dim=-1)"),
        "diff = {x} - y\n{x} = tl.sqrt(tl.sum(diff * diff, axis=0))",
        (3.0, 12.0),
    ),
    (
        "manhattan_distance",
        ("torch.abs(x - y).sum(dim=-1)", "(x - y).abs().sum(dim=-1)"),
        "{x} = tl.sum(tl.abs({x} - y), axis=0)",
        (20.0, 55.0),
    ),
    (
        "chebyshev_distance",
        ("torch.abs(x - y).amax(dim=-1)", "(x - y).abs().max(dim=-1)[0]"),
        "{x} = tl.max(tl.abs({x} - y), axis=0)",
        (1.0, 5.0),
    ),
    (
        "cosine_similarity",
        ("F.cosine_similarity(x, y, dim=-1)", "(F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum(dim=-1)"),
        "dot = tl.sum({x} * y, axis=0)\nnorms = tl.sqrt(tl.sum({x} * {x}, axis=0) * tl.sum(y * y, axis=0))\n"
        "{x} = dot / norms",
        (-0.6, 0.6),
    ),
)


def affine_norm(tape: Tape, name: str, features: str) -> None:
    """Append nn.LayerNorm or nn.RMSNorm with their parameters."""
    s = tape.sketch
    s.argument(features)
    if name == "layer_norm":
        s.state.append(f"self.norm = nn.LayerNorm({features})")
        parameters: Sequence[str] = ("weight", "bias")
    else:
        s.state.append(f"self.norm = nn.RMSNorm({features}, eps=1e-6)")
        parameters = ("weight",)
    s.step(f"self.norm({s.variable})")
    along(tape, SHAPED[name], spell=False)
    for parameter in parameters:
        tape.operand(parameter, f"self.norm.{parameter}", "last")
    tape.say("{x} = {x} * weight" + " + bias" * (len(parameters) == 2))
    tape.pad = None
    s.ops[-1] = f"affine_{name}"


def _around(tape: Tape, op: RowOp, dim: str, before: int, after: int) -> None:
    tape.chain(before, GENTLE)
    along(tape, op, dim=dim)
    tape.chain(after, UNARY)
    tape.finish()


def _residual_operand(tape: Tape, shape: list[str], before: int, after: int) -> tuple[int, int]:
    """Replace one operation, half of the time, by a second input that is added before the norm."""
    if tape.rng.random() < 0.5:
        tape.sketch.tensor("residual", shape)
        tape.combine((BY_NAME["add"], BY_NAME["add_scaled"]), "residual", label="_residual")
        return (before - 1, after) if before else (before, max(after - 1, 0))
    return before, after


def _split(s: Sketch, count: int) -> tuple[int, int]:
    before = s.rng.randint(0, count)
    return before, count - before


def _axis_tape(s: Sketch, make: str | None = None, along_rows: float = 0.6) -> tuple[Tape, str]:
    """Return a tape along the last dimension or an earlier one, and the index of that dimension in PyTorch."""
    if s.rng.random() < along_rows:
        shape = rows_shape(s)
        layout: Layout = Rows(s)
        dim = s.rng.choice(("-1", "-1", str(len(shape) - 1)))
    else:
        batched = s.rng.random() < 0.7
        shape = columns_shape(s, batched)
        layout = Columns(s, batched=batched)
        dim = "1" if batched else "0"
    s.tensor("x", shape, make)
    tape = Tape(layout, (0.0, 1.0) if "rand(" in s.inputs["x"] else NORMAL)
    tape.load_input()
    return tape, dim
