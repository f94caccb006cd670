"""Operations along one axis: those that keep the shape (softmax, norms, scans) and reductions.

`{x}` is the running value, `{ax}` the kernel's axis, `{k}` broadcasts a reduced value back, `{n}` is the number of
elements, `{mask}` says which are real; `{dim}` is PyTorch's dimension. A reference of several lines ends in an
expression.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_coder.tasks.generator.layouts import NEG_INF, POS_INF, Tape
from kernel_coder.tasks.generator.pointwise import Range


@dataclass(frozen=True, slots=True)
class RowOp:
    """An operation. `needs`: the value of masked elements before it; `leaves`: their value after it (None: any)."""

    name: str
    torch: tuple[str, ...]
    triton: str
    needs: str
    span: Range
    leaves: str | None = None
    integer: bool = False  # gives indices
    raw_only: bool = False  # chooses between elements, so allowed only where both sides have the same bits


_MEAN = "tl.sum({x}, axis={ax}) / {n}"

SHAPED = {
    op.name: op
    for op in (
        RowOp(
            "softmax",
            ("torch.softmax({x}, dim={dim})", "F.softmax({x}, dim={dim})", "{x}.softmax(dim={dim})"),
            "{x} = tl.exp({x} - tl.max({x}, axis={ax}){k})\n{x} = {x} / tl.sum({x}, axis={ax}){k}",
            NEG_INF,
            (0.0, 0.03),
            leaves="0.0",
        ),
        RowOp(
            "log_softmax",
            ("torch.log_softmax({x}, dim={dim})", "F.log_softmax({x}, dim={dim})"),
            "{x} = {x} - tl.max({x}, axis={ax}){k}\n{x} = {x} - tl.log(tl.sum(tl.exp({x}), axis={ax})){k}",
            NEG_INF,
            (-9.0, -1.0),
        ),
        RowOp(
            "center",
            ("{x} - {x}.mean(dim={dim}, keepdim=True)",),
            "mean = " + _MEAN + "\n{x} = {x} - mean{k}",
            "0.0",
            (-3.0, 3.0),
        ),
        RowOp(
            "standardize",
            (
                "mean = {x}.mean(dim={dim}, keepdim=True)\nstd = {x}.std(dim={dim}, keepdim=True)\n"
                "({x} - mean) / (std + 1e-6)",
                "({x} - {x}.mean(dim={dim}, keepdim=True)) / ({x}.std(dim={dim}, keepdim=True) + 1e-6)",
            ),
            "mean = " + _MEAN + "\n"
            "{x} = tl.where({mask}, {x} - mean{k}, 0.0)\n"
            "std = tl.sqrt(tl.sum({x} * {x}, axis={ax}) / ({n} - 1))\n"
            "{x} = {x} / (std + 1e-6){k}",
            "0.0",
            (-3.0, 3.0),
            leaves="0.0",
        ),
        RowOp(
            "layer_norm",
            ("F.layer_norm({x}, {x}.shape[-1:])",),
            "mean = " + _MEAN + "\n"
            "{x} = tl.where({mask}, {x} - mean{k}, 0.0)\n"
            "var = tl.sum({x} * {x}, axis={ax}) / {n}\n"
            "{x} = {x} * tl.rsqrt(var + 1e-5){k}",
            "0.0",
            (-3.0, 3.0),
            leaves="0.0",
        ),
        RowOp(
            "rms_norm",
            (
                "{x} * torch.rsqrt({x}.pow(2).mean(dim={dim}, keepdim=True) + 1e-6)",
                "rms = torch.sqrt(({x} * {x}).mean(dim={dim}, keepdim=True) + 1e-6)\n{x} / rms",
            ),
            "var = tl.sum({x} * {x}, axis={ax}) / {n}\n{x} = {x} * tl.rsqrt(var + 1e-6){k}",
            "0.0",
            (-3.0, 3.0),
            leaves="0.0",
        ),
        RowOp(
            "l2_normalize",
            ("F.normalize({x}, dim={dim})", "F.normalize({x}, p=2, dim={dim})"),
            "norm = tl.sqrt(tl.sum({x} * {x}, axis={ax}))\n{x} = {x} / tl.maximum(norm, 1e-12){k}",
            "0.0",
            (-0.3, 0.3),
            leaves="0.0",
        ),
        RowOp(
            "l1_normalize",
            ("{x} / ({x}.abs().sum(dim={dim}, keepdim=True) + 1e-6)",),
            "norm = tl.sum(tl.abs({x}), axis={ax})\n{x} = {x} / (norm + 1e-6){k}",
            "0.0",
            (-0.03, 0.03),
            leaves="0.0",
        ),
        RowOp(
            "absmax_normalize",
            ("{x} / ({x}.abs().amax(dim={dim}, keepdim=True) + 1e-6)",),
            "largest = tl.max(tl.abs({x}), axis={ax})\n{x} = {x} / (largest + 1e-6){k}",
            "0.0",
            (-1.0, 1.0),
            leaves="0.0",
        ),
        RowOp(
            "min_max",
            (
                "low = {x}.amin(dim={dim}, keepdim=True)\nhigh = {x}.amax(dim={dim}, keepdim=True)\n"
                "({x} - low) / (high - low + 1e-6)",
            ),
            f"low = tl.min(tl.where({{mask}}, {{x}}, {POS_INF}), axis={{ax}})\n"
            f"high = tl.max(tl.where({{mask}}, {{x}}, {NEG_INF}), axis={{ax}})\n"
            "{x} = ({x} - low{k}) / (high - low + 1e-6){k}",
            "",
            (0.0, 1.0),
        ),
        RowOp(
            "subtract_max",
            ("{x} - {x}.amax(dim={dim}, keepdim=True)", "{x} - {x}.max(dim={dim}, keepdim=True)[0]"),
            "{x} = {x} - tl.max({x}, axis={ax}){k}",
            NEG_INF,
            (-6.0, 0.0),
        ),
        RowOp(
            "cumsum",
            ("torch.cumsum({x}, dim={dim})", "{x}.cumsum(dim={dim})"),
            "{x} = tl.cumsum({x}, axis={ax})",
            "0.0",
            (-12.0, 12.0),
        ),
        RowOp(
            "reverse_cumsum",
            ("torch.cumsum({x}.flip({dim}), dim={dim}).flip({dim})",),
            "{x} = tl.cumsum({x}, axis={ax}, reverse=True)",
            "0.0",
            (-12.0, 12.0),
        ),
        RowOp(
            "exclusive_cumsum",
            ("torch.cumsum({x}, dim={dim}) - {x}",),
            "{x} = tl.cumsum({x}, axis={ax}) - {x}",
            "0.0",
            (-12.0, 12.0),
        ),
        RowOp(
            "suffix_sum",
            ("{x}.sum(dim={dim}, keepdim=True) - torch.cumsum({x}, dim={dim})",),
            "{x} = tl.sum({x}, axis={ax}){k} - tl.cumsum({x}, axis={ax})",
            "0.0",
            (-12.0, 12.0),
        ),
    )
}

REDUCTIONS = {
    op.name: op
    for op in (
        RowOp("sum", ("{x}.sum({dims})", "torch.sum({x}, {dims})"), "{x} = tl.sum({x}, axis={ax})", "0.0", (-12, 12)),
        RowOp("mean", ("{x}.mean({dims})", "torch.mean({x}, {dims})"), "{x} = " + _MEAN, "0.0", (-0.6, 0.6)),
        RowOp(
            "max", ("{x}.amax({dims})", "torch.max({x}, {dims})[0]"),
            "{x} = tl.max({x}, axis={ax})", NEG_INF, (1, 4),
        ),
        RowOp(
            "min", ("{x}.amin({dims})", "torch.min({x}, {dims})[0]"),
            "{x} = tl.min({x}, axis={ax})", POS_INF, (-4, -1),
        ),
        RowOp(
            "l2_norm",
            ("torch.norm({x}, p=2, {dims})", "{x}.pow(2).sum({dims}).sqrt()"),
            "{x} = tl.sqrt(tl.sum({x} * {x}, axis={ax}))",
            "0.0",
            (2, 12),
        ),
        RowOp(
            "l1_norm", ("{x}.abs().sum({dims})", "torch.norm({x}, p=1, {dims})"),
            "{x} = tl.sum(tl.abs({x}), axis={ax})", "0.0", (5, 50),
        ),
        RowOp(
            "mean_square", ("{x}.pow(2).mean({dims})", "({x} * {x}).mean({dims})"),
            "{x} = tl.sum({x} * {x}, axis={ax}) / {n}", "0.0", (0.2, 2),
        ),
        RowOp(
            "logsumexp",
            ("torch.logsumexp({x}, {dims})", "{x}.logsumexp({dims})"),
            "largest = tl.max({x}, axis={ax})\n{x} = largest + tl.log(tl.sum(tl.exp({x} - largest{k}), axis={ax}))",
            NEG_INF,
            (1, 7),
        ),
        RowOp(
            "variance",
            ("{x}.var({dims}, unbiased=False)", "torch.var({x}, {dims}, unbiased=False)"),
            "mean = " + _MEAN + "\n{x} = tl.where({mask}, {x} - mean{k}, 0.0)\n"
            "{x} = tl.sum({x} * {x}, axis={ax}) / {n}",
            "0.0",
            (0.2, 2),
        ),
        RowOp(
            "std",
            ("{x}.std({dims})", "torch.std({x}, {dims})"),
            "mean = " + _MEAN + "\n{x} = tl.where({mask}, {x} - mean{k}, 0.0)\n"
            "{x} = tl.sqrt(tl.sum({x} * {x}, axis={ax}) / ({n} - 1))",
            "0.0",
            (0.4, 1.6),
        ),
        RowOp(
            "absmax", ("{x}.abs().amax({dims})",), "{x} = tl.max(tl.abs({x}), axis={ax})", "0.0", (1, 4),
        ),
        RowOp(
            "spread",
            ("{x}.amax({dims}) - {x}.amin({dims})",),
            f"low = tl.min(tl.where({{mask}}, {{x}}, {POS_INF}), axis={{ax}})\n"
            f"high = tl.max(tl.where({{mask}}, {{x}}, {NEG_INF}), axis={{ax}})\n"
            "{x} = high - low",
            "",
            (2, 7),
        ),
        RowOp(
            "argmax", ("torch.argmax({x}, {dims})", "{x}.argmax({dims})"), "{x} = tl.argmax({x}, axis={ax})",
            NEG_INF, (0, 1), integer=True, raw_only=True,
        ),
        RowOp(
            "argmin", ("torch.argmin({x}, {dims})", "{x}.argmin({dims})"), "{x} = tl.argmin({x}, axis={ax})",
            POS_INF, (0, 1), integer=True, raw_only=True,
        ),
    )
}  # fmt: skip


_CENTRED = ("center", "standardize", "layer_norm", "min_max", "variance", "std", "spread", "subtract_max")


def along(tape: Tape, op: RowOp, *, dim: str = "-1", keepdim: bool = False, spell: bool = True) -> None:
    """Append the operation to kernel and reference (`spell` false: the caller writes the reference)."""
    layout = tape.layout
    if op.needs:
        tape.need(op.needs)
    names = {"ax": layout.axis, "k": layout.keep, "n": layout.extent, "mask": layout.mask}
    tape.say(op.triton.format(x=layout.var, **names))
    tape.pad = op.leaves
    tape.settle(op.span, centred=op.name in _CENTRED)
    if spell:
        dims = f"dim={dim}, keepdim=True" if keepdim else f"dim={dim}"
        tape.sketch.step(tape.rng.choice(op.torch).format(x=tape.sketch.variable, dim=dim, dims=dims))
    tape.sketch.ops.append(op.name)
