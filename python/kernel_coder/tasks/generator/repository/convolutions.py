"""Convolutions of one to three dimensions as implicit matrix products: rows are output positions, columns output
channels, and the inner dimension runs over input channels and taps. The texts for different dimensions differ only in
the number of lines that are repeated for each axis."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_coder.tasks.generator.repository.draft import NO_DEFAULT, Draft, Kernel, UnsuitableError
from kernel_coder.tasks.generator.repository.sizes import budget, large

AXES = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}
EXTENTS = {
    1: (("length",), ("sequence_length",), ("L",)),
    2: (("height", "width"), ("H", "W")),
    3: (("depth", "height", "width"), ("D", "H", "W")),
}
TILE = {"BM": 64, "BK": 32}
"""Output positions and depth of a program's tile; the width BN follows the number of channels, up to 64."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One convolution: numbers are per axis."""

    ndim: int
    transposed: bool
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def extent(self, size: int, axis: int) -> int:
        """Return the output's size along an axis."""
        span = self.dilation[axis] * (self.taps[axis] - 1)
        if self.transposed:
            return (size - 1) * self.stride[axis] - 2 * self.padding[axis] + span + self.output_padding[axis] + 1
        return (size + 2 * self.padding[axis] - span - 1) // self.stride[axis] + 1


def convolution(
    draft: Draft,
    ndim: int,
    *,
    transposed: bool = False,
    style: str = "plain",
    in_chain: bool = False,
    most: float = 3e11,
) -> str:
    """Generate a convolution layer, alone or at the start of a chain; returns the name of its number of output
    channels.

    Args:
        draft: the module.
        ndim: number of spatial dimensions.
        transposed: a transposed convolution.
        style: plain, asymmetric (taps differ by axis), strided, dilated, grouped, depthwise, pointwise.
        in_chain: fewer arguments, as in blocks of several operations.
        most: upper limit for the floating-point operations.
    """
    rng = draft.rng
    is_tuple = ndim > 1 and (style == "asymmetric" or rng.random() < 0.12)
    choices = (1, 2, 3, 3, 3, 4, 5, 7) if not in_chain else (2, 3, 3, 3, 4, 5)
    taps = (
        tuple(rng.choice((1, 3, 5, 7) if style == "asymmetric" else choices) for _ in range(ndim))
        if is_tuple
        else (rng.choice(choices),) * ndim
    )
    if style == "pointwise":
        is_tuple, taps = False, (1,) * ndim
    wide = style in ("strided", "dilated", "grouped") or rng.random() < (0.4 if transposed else 0.2)

    def numbers(values: tuple[int, ...], often: bool) -> tuple[int, ...]:
        value = rng.choice(values) if often else values[0]
        if is_tuple and often and rng.random() < 0.5:
            return tuple(rng.choice(values) for _ in range(ndim))
        return (value,) * ndim

    stride = numbers((1, 2, 3), style in ("strided", "grouped") or wide)
    dilation = numbers((1, 2, 3), style == "dilated")
    padding = numbers((0, 1, 2), wide or rng.random() < 0.4)
    extra = (0,) * ndim
    if transposed:
        padding = tuple(min(one, dilation[at] * (taps[at] - 1)) for at, one in enumerate(padding))
        if rng.random() < 0.3 and any(one > 1 for one in stride):
            extra = tuple(int(one > 1) for one in stride)
            if len(set(extra)) > 1 and not is_tuple:
                extra = (0,) * ndim
    if len(set(padding)) > 1 and not is_tuple:
        padding = (padding[0],) * ndim
    groups_pair = (1, 1)
    if style == "grouped":
        groups_pair = (rng.choice((2, 4, 8)), 2)
    c_in = rng.choice((3, 8, 16, 32, 64, 128))
    c_out = rng.choice((8, 16, 24, 32, 64, 128))
    s_in, s_out = rng.choice((2, 3, 5)), rng.choice((4, 6, 8))
    if in_chain:
        c_out, s_out = c_out // 8 * 8, rng.choice((4, 8))
    if style == "grouped":
        c_in, c_out = max(c_in, 16) // 8 * 8, c_out // 8 * 8
        s_in, s_out = 4, rng.choice((4, 6, 8))
    if style == "depthwise":
        c_in = max(c_in, 8)
        c_out, s_out = c_in, s_in
        groups_pair = (c_in, s_in)
    spec = Spec(ndim, transposed, taps, stride, padding, extra, dilation, groups_pair[0])
    count = 1
    for one in taps:
        count *= one
    batch = rng.choice((1, 4, 8, 16, 32, 64))
    positions = min(budget(rng), most) / (2 * batch * count * c_in * c_out / groups_pair[0])
    positions = min(max(positions, 4.0**ndim), 2.5e8 / batch / max(c_in, c_out))
    side = int(positions ** (1 / ndim))
    real = [max(large(rng, max(side, 4), 4), dilation[at] * (taps[at] - 1) + 2) for at in range(ndim)]
    if rng.random() < 0.5:
        real = [max(real)] * ndim
    few = {1: (5, 7, 9), 2: (3, 4, 5), 3: (2, 3)}[ndim]
    little = [
        rng.choice(few) + (0 if transposed else dilation[at] * (taps[at] - 1) + stride[at] - 1) for at in range(ndim)
    ]
    if any(spec.extent(size, at) < 1 for sizes in (real, little) for at, size in enumerate(sizes)):
        raise UnsuitableError("the output is empty")

    B = draft.size("batch_size", batch, 2)
    cin, cout = draft.size("in_channels", c_in, s_in), draft.size("out_channels", c_out, s_out)
    space = tuple(draft.size(name, a, b) for name, a, b in zip(rng.choice(EXTENTS[ndim]), real, little, strict=True))
    in_full = {"plain": 0.4, "asymmetric": 0.5, "dilated": 0.3, "depthwise": 0.4}.get(style, 0.0)
    is_full = not in_chain and rng.random() < in_full  # every optional argument, as PyTorch has them
    draft.argument(cin, (c_in, s_in), doc="Number of channels of the input")
    draft.argument(cout, (c_out, s_out), doc="Number of channels of the output")
    call = [cin, cout]

    def given(
        name: str, values: tuple[int, ...], default: int | None, doc: str, share: float, as_tuple: bool = False
    ) -> None:
        """Adds an argument of the layer: one of ``__init__``, a number in the call, or PyTorch's default."""
        same = len(set(values)) == 1
        value = tuple(values) if as_tuple or not same else values[0]
        kind = "tuple" if isinstance(value, tuple) else "int"
        if default is None:
            draft.argument(name, (value, value), kind, doc=doc)
            call.append(name)
            return
        is_default = same and values[0] == default
        if rng.random() < (share if is_default else 0.85):
            usual = default if kind == "int" else (default,) * len(values)
            draft.argument(name, (value, value), kind, usual if not in_chain else NO_DEFAULT, doc)
            call.append(f"{name}={name}")
        elif not is_default:
            call.append(f"{name}={value!r}")

    if style == "pointwise":
        call.append("kernel_size=1" if rng.random() < 0.6 else "1")
    else:
        given("kernel_size", taps, None, "Size of the kernel", 1.0, is_tuple)
        if not is_tuple and ndim > 1 and rng.random() < 0.25:
            keyword = rng.choice(("kernel_size=", ""))
            call[-1] = f"{keyword}({', '.join(['kernel_size'] * ndim)})"
        elif rng.random() < 0.25:
            call[-1] = "kernel_size=kernel_size"
    share = 1.0 if is_full else 0.1 if in_chain else 0.6
    less = 1.0 if is_full else share / 2
    if style != "pointwise":
        given("stride", stride, 1, "Stride of the convolution", share)
        given("padding", padding, 0, "Padding on each side", share)
        if transposed:
            given("output_padding", extra, 0, "Size added to one side of the output", less)
        if not transposed or style == "dilated":
            given("dilation", dilation, 1, "Spacing between the taps", less)
    has_groups = style == "grouped"
    if style == "depthwise":
        call.append(f"groups={cin}")
        if is_full and rng.random() < 0.4:  # an argument that nothing reads
            draft.argument("groups", (1, 1), "int", 1, "Number of groups of channels")
    elif has_groups:
        draft.argument("groups", groups_pair, "int", 1 if not in_chain else NO_DEFAULT, "Number of groups of channels")
        call.append("groups=groups")
    elif (is_full and style != "dilated") or (not in_chain and style == "plain" and rng.random() < 0.25):
        draft.argument("groups", (1, 1), "int", 1, "Number of groups of channels")
        call.append("groups=groups")
        has_groups = True
    weights = (0, 1, 5) if in_chain else (1, 0, 0) if is_full else (6, 1, 3)
    bias = rng.choices(("argument", "none", "default"), weights=weights)[0]
    if bias == "argument":
        default = rng.choice((False, False, True))
        draft.argument("bias", (default, default), "bool", default, "Whether a bias is added")
        call.append("bias=bias")
    elif bias == "none":
        call.append("bias=False")
    suffix = "transpose" if transposed else ""
    layer = draft.free(
        rng.choice(
            (
                f"conv{'_' * transposed}{suffix}",
                f"conv{'_' * transposed}{suffix}{ndim}d",
                "conv",
                "layer" if in_chain else "conv",
            )
        )
    )
    draft.line(f"self.{layer} = nn.Conv{suffix.title()}{ndim}d({', '.join(call)})")
    draft.input("x", (B, cin, *space), is_first=True)
    draft.steps.append(f"self.{layer}({{x}})")
    words = {
        "plain": "",
        "asymmetric": "",
        "strided": "strided ",
        "dilated": "dilated ",
        "grouped": "grouped ",
        "depthwise": "depthwise ",
        "pointwise": "pointwise ",
    }
    name = f"conv{suffix}{ndim}d" + (f"_{style}" if style not in ("plain", "asymmetric") else "")
    draft.op(name, f"a {words[style]}{'transposed ' * transposed}{ndim}D convolution")
    outs = [[spec.extent(size, axis) for axis, size in enumerate(sizes)] for sizes in (real, little)]
    draft.shape = draft.both(lambda at: [(batch, 2)[at], (c_out, s_out)[at], *outs[at]])
    if style == "depthwise":
        kernel = _depthwise(draft, ndim, layer, transposed, bias)
    elif style == "pointwise":
        kernel = _pointwise(draft, layer, bias)
    else:
        kernel = _implicit(draft, ndim, layer, transposed, bias, has_groups)
    assert kernel
    return cout


def _bias(draft: Draft, kernel: Kernel, layer: str, bias: str) -> None:
    """Adds the layer's bias, if it may have one."""
    if bias == "none":
        return
    add = f"{kernel.value} += {kernel.channel.format(p='b_ptr')}"
    kernel.pointers.insert(2, ("b_ptr", f"self.{layer}.bias"))
    kernel.head += ["if b_ptr is not None:", f"    {add}"] if bias == "argument" else [add]


def _letters(ndim: int) -> list[tuple[str, str]]:
    return [(axis, axis.lower()) for axis in AXES[ndim]]


def _positions(ndim: int, source: str) -> list[str]:
    """Return the lines that give the output coordinates of the positions `source`, outermost first."""
    axes = _letters(ndim)
    lines = []
    for at, (_, small_letter) in enumerate(axes):
        after = [f"O{axis}" for axis, _ in axes[at + 1 :]]
        divided = source
        if after:
            divided += " // " + (after[0] if len(after) == 1 else f"({' * '.join(after)})")
        lines.append(f"o{small_letter} = {divided}" + (f" % O{axes[at][0]}" if at else ""))
    return lines


def _setup(ndim: int, layer: str, transposed: bool, out: str, *, grouped: bool) -> list[str]:
    """Return the lines of ``forward`` that assign every number to a name and make the output."""
    axes = _letters(ndim)
    lines = [
        f"B, C, {', '.join(axis for axis, _ in axes)} = x.shape",
        f"w = self.{layer}.weight",
        f"OC = self.{layer}.out_channels",
        f"{', '.join(f'K{axis}' for axis, _ in axes)}{',' * (ndim == 1)} = self.{layer}.kernel_size",
    ]
    for letter, attribute in (("s", "stride"), ("p", "padding"), ("d", "dilation")):
        lines.append(f"{', '.join(f'{letter}{low}' for _, low in axes)}{',' * (ndim == 1)} = self.{layer}.{attribute}")
    if grouped:
        lines.append(f"G = self.{layer}.groups")
    for at, (axis, low) in enumerate(axes):
        if transposed:
            lines.append(
                f"O{axis} = ({axis} - 1) * s{low} - 2 * p{low} + d{low} * (K{axis} - 1)"
                f" + self.{layer}.output_padding[{at}] + 1"
            )
        else:
            lines.append(f"O{axis} = ({axis} + 2 * p{low} - d{low} * (K{axis} - 1) - 1) // s{low} + 1")
    outs = ", ".join(f"O{axis}" for axis, _ in axes)
    lines.append(f"{out} = torch.empty((B, OC, {outs}), device=x.device, dtype=x.dtype)")
    return lines


def _implicit(draft: Draft, ndim: int, layer: str, transposed: bool, bias: str, grouped: bool) -> Kernel:
    axes = _letters(ndim)
    out = draft.variable()
    taps = " * ".join(f"K{axis}" for axis, _ in axes)
    space = " * ".join(f"O{axis}" for axis, _ in axes)
    volume = " * ".join(axis for axis, _ in axes)
    head = ["tiles = tl.cdiv(OC, BN)", "pid = tl.program_id(0)"]
    if grouped:  # C and OC are those of one group
        head += ["g = pid % G", "pid = pid // G"]
    head += [
        "p = (pid // tiles).to(tl.int64) * BM + tl.arange(0, BM)",
        "oc = pid % tiles * BN + tl.arange(0, BN)",
        f"s = (p % ({space})).to(tl.int32)" if ndim > 1 else "ol = (p % OL).to(tl.int32)",
        *(_positions(ndim, "s") if ndim > 1 else []),
        f"x_row = x_ptr + p // {'(' + space + ')' if ndim > 1 else space} * (C * {volume}{' * G' * grouped})"
        + f" + g * C * {volume}" * grouped,
        "acc = tl.zeros((BM, BN), tl.float32)",
        f"for k0 in range(0, C * {taps}, BK):",
        "    k = k0 + tl.arange(0, BK)",
    ]
    inside = [f"(p < P)[:, None] & (k < C * {taps})[None, :]"]
    index = ""
    for at, (axis, low) in enumerate(axes):
        after = [f"K{each}" for each, _ in axes[at + 1 :]]
        tap = (
            "k"
            + (f" // {after[0]}" if len(after) == 1 else f" // ({' * '.join(after)})" if after else "")
            + f" % K{axis}"
        )
        if transposed:
            head.append(f"    {low} = (o{low} + p{low})[:, None] - ({tap} * d{low})[None, :]")
            inside.append(f"({low} >= 0) & ({low} % s{low} == 0) & ({low} // s{low} < {axis})")
            coordinate = f"{low} // s{low}"
        else:
            head.append(f"    {low} = (o{low} * s{low} - p{low})[:, None] + ({tap} * d{low})[None, :]")
            inside.append(f"({low} >= 0) & ({low} < {axis})")
            coordinate = low
        before = (
            f"(k // {'(' + taps + ')' if ndim > 1 else taps})[None, :]"
            if at == 0
            else (index if at == 1 and " " not in index else f"({index})")
        )
        index = f"{before} * {axis} + {coordinate}"
    head.append(f"    inside = {inside[0]}")
    head += [f"    inside = inside & {each}" for each in inside[1:]]
    channel = "oc[None, :]"
    if transposed:
        row = f"k // {'(' + taps + ')' if ndim > 1 else taps}"
        weight = (
            f"(({'g * C + ' if grouped else ''}{row})[:, None] * OC + {channel}) * ({taps}) + (k % ({taps}))[:, None]"
        )
    else:
        weight = f"{'(g * OC + ' + channel + ')' if grouped else channel} * (C * {taps}) + k[:, None]"
    head += [
        f"    a = tl.load(x_row[:, None] + {index}, mask=inside, other=0.0)",
        f"    b = tl.load(w_ptr + {weight}, mask=(k < C * {taps})[:, None] & (oc < OC)[None, :], other=0.0)",
        '    acc = tl.dot(a, b, acc, input_precision="ieee")',
    ]
    row = f"p // ({space})" if ndim > 1 else "p // OL"
    rest = "s" if ndim > 1 else "ol"
    plane = f"({space})" if ndim > 1 else "OL"
    store = f"(({row})[:, None] * {'(OC * G) + g * OC' if grouped else 'OC'} + {channel}) * {plane} + {rest}[:, None]"
    mask = "(p < P)[:, None] & (oc < OC)[None, :]"
    names = [axis for axis, _ in axes]
    lows = [low for _, low in axes]
    scalars = [("P", "P"), ("C", "C // G" if grouped else "C"), ("OC", "OC // G" if grouped else "OC")]
    scalars += [("G", "G")] * grouped + [(name, name) for name in names] + [(f"O{name}", f"O{name}") for name in names]
    scalars += [(f"{letter}{low}", f"{letter}{low}") for letter in "spd" for low in lows]
    setup = _setup(ndim, layer, transposed, out, grouped=grouped)
    setup += [f"P = B * {space}", f"BN = min(64, max(16, triton.next_power_of_2(OC{' // G' if grouped else ''})))"]
    kernel = Kernel(
        name=f"conv{'_transpose' * transposed}{ndim}d_kernel",
        thought="each program computes a tile of output positions and channels as an implicit matrix product over"
        " channels and taps",
        pointers=[("x_ptr", "x"), ("w_ptr", "w"), ("out_ptr", out)],
        scalars=scalars,
        blocks=[
            *[(f"K{name}", f"K{name}") for name in names],
            ("BM", str(TILE["BM"])),
            ("BN", "BN"),
            ("BK", str(TILE["BK"])),
        ],
        head=head,
        value="acc",
        offset="offset",
        mask="mask",
        channel="tl.load({p} + g * OC + oc, mask=oc < OC)[None, :]"
        if grouped
        else "tl.load({p} + oc, mask=oc < OC)[None, :]",
        tail=["tl.store(out_ptr + offset, acc, mask=mask)"],
        setup=setup,
        grid=f"({'G * ' * grouped}triton.cdiv(P, {TILE['BM']}) * triton.cdiv(OC{' // G' * grouped}, BN),)",
        out=out,
    )
    kernel.head += [f"offset = {store}", f"mask = {mask}"]
    _bias(draft, kernel, layer, bias)
    return draft.open(kernel)


def _depthwise(draft: Draft, ndim: int, layer: str, transposed: bool, bias: str) -> Kernel:
    """Open a kernel with one output element for each lane, since depthwise convolutions share nothing between
    channels."""
    axes = _letters(ndim)
    out = draft.variable()
    head = [
        "i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "mask = i < n",
        *_positions(ndim, "i"),
    ]
    first = f"o{axes[0][1]}"
    space = " * ".join(f"O{axis}" for axis, _ in axes)
    head = [line if not line.startswith(f"{first} =") else f"{line} % O{axes[0][0]}" for line in head]
    head += [
        f"nc = i // ({space})" if ndim > 1 else "nc = i // OL",
        "c = nc % C",
        "acc = tl.zeros((BLOCK,), tl.float32)",
    ]
    indent = ""
    inside, index, tap = ["mask"], "nc", "c"
    for axis, low in axes:
        head.append(f"{indent}for k{low} in range(K{axis}):")
        indent += "    "
        tap = f"({tap}) * K{axis} + k{low}" if " " in tap else f"{tap} * K{axis} + k{low}"
        if transposed:
            head.append(f"{indent}{low} = o{low} + p{low} - k{low} * d{low}")
            inside.append(f"({low} >= 0) & ({low} % s{low} == 0) & ({low} // s{low} < {axis})")
            coordinate = f"{low} // s{low}"
        else:
            head.append(f"{indent}{low} = o{low} * s{low} - p{low} + k{low} * d{low}")
            inside.append(f"({low} >= 0) & ({low} < {axis})")
            coordinate = low
        index = f"({index}) * {axis} + {coordinate}" if " " in index else f"{index} * {axis} + {coordinate}"
    head += [
        f"{indent}inside = {' & '.join(inside)}",
        f"{indent}x = tl.load(x_ptr + {index}, mask=inside, other=0.0)",
        f"{indent}acc += x * tl.load(w_ptr + {tap}, mask=mask, other=0.0)",
    ]
    names, lows = [axis for axis, _ in axes], [low for _, low in axes]
    scalars = [("n", "n"), ("C", "C"), *[(name, name) for name in names], *[(f"O{name}", f"O{name}") for name in names]]
    scalars += [(f"{letter}{low}", f"{letter}{low}") for letter in "spd" for low in lows]
    kernel = Kernel(
        name=f"depthwise_conv{'_transpose' * transposed}{ndim}d_kernel",
        thought="each program computes a block of outputs, each from the taps of its own channel",
        pointers=[("x_ptr", "x"), ("w_ptr", "w"), ("out_ptr", out)],
        scalars=scalars,
        blocks=[*[(f"K{name}", f"K{name}") for name in names], ("BLOCK", "512")],
        head=head,
        value="acc",
        offset="i",
        mask="mask",
        channel="tl.load({p} + c, mask=mask)",
        tail=["tl.store(out_ptr + i, acc, mask=mask)"],
        setup=[line for line in _setup(ndim, layer, transposed, out, grouped=False) if not line.startswith("OC =")],
        grid="(triton.cdiv(n, 512),)",
        out=out,
    )
    kernel.setup[-1] = kernel.setup[-1].replace("(B, OC,", "(B, C,")
    kernel.setup.append(f"n = {out}.numel()")
    _bias(draft, kernel, layer, bias)
    return draft.open(kernel)


def _pointwise(draft: Draft, layer: str, bias: str) -> Kernel:
    """Open a kernel for a convolution of one tap: a matrix product over channels at every position."""
    out = draft.variable()
    source = draft.value
    kernel = Kernel(
        name="pointwise_conv_kernel",
        thought="a convolution of one tap is a matrix product over channels, of which each program computes a tile",
        pointers=[("x_ptr", source), ("w_ptr", f"self.{layer}.weight"), ("out_ptr", out)],
        scalars=[("P", "P"), ("C", "C"), ("OC", "OC"), ("S", "S")],
        blocks=[("BM", str(TILE["BM"])), ("BN", "BN"), ("BK", str(TILE["BK"]))],
        head=[
            "tiles = tl.cdiv(OC, BN)",
            "p = (tl.program_id(0) // tiles).to(tl.int64) * BM + tl.arange(0, BM)",
            "oc = tl.program_id(0) % tiles * BN + tl.arange(0, BN)",
            "acc = tl.zeros((BM, BN), tl.float32)",
            "for k0 in range(0, C, BK):",
            "    c = k0 + tl.arange(0, BK)",
            "    x_offset = ((p // S)[:, None] * C + c[None, :]) * S + (p % S)[:, None]",
            "    a = tl.load(x_ptr + x_offset, mask=(p < P)[:, None] & (c < C)[None, :], other=0.0)",
            "    b_mask = (c < C)[:, None] & (oc < OC)[None, :]",
            "    b = tl.load(w_ptr + oc[None, :] * C + c[:, None], mask=b_mask, other=0.0)",
            '    acc = tl.dot(a, b, acc, input_precision="ieee")',
            "offset = ((p // S)[:, None] * OC + oc[None, :]) * S + (p % S)[:, None]",
            "mask = (p < P)[:, None] & (oc < OC)[None, :]",
        ],
        value="acc",
        offset="offset",
        mask="mask",
        channel="tl.load({p} + oc, mask=oc < OC)[None, :]",
        tail=["tl.store(out_ptr + offset, acc, mask=mask)"],
        setup=[
            f"OC, C = self.{layer}.weight.shape[:2]",
            f"P = {source}.numel() // C",
            f"S = P // {source}.shape[0]",
            "BN = min(64, max(16, triton.next_power_of_2(OC)))",
            f"{out} = torch.empty(({source}.shape[0], OC, *{source}.shape[2:]),"
            f" device={source}.device, dtype={source}.dtype)",
        ],
        grid=f"(triton.cdiv(P, {TILE['BM']}) * triton.cdiv(OC, BN),)",
        out=out,
    )
    _bias(draft, kernel, layer, bias)
    return draft.open(kernel)


def separable(draft: Draft) -> None:
    """Generate a depthwise convolution and then a pointwise one."""
    rng = draft.rng
    taps = rng.choice((3, 3, 5))
    c_in, c_out = rng.choice((16, 32, 64)), rng.choice((32, 64, 128))
    side = large(rng, min(256, max(8, (budget(rng) / 16 / c_in / c_out) ** 0.5)), 8)
    B = draft.size("batch_size", rng.choice((4, 8, 16)), 2)
    cin, cout = draft.size("in_channels", c_in, 3), draft.size("out_channels", c_out, 5)
    H, W = draft.size("height", side, 7), draft.size("width", side, 6)
    for name, doc in ((cin, "Number of channels of the input"), (cout, "Number of channels of the output")):
        draft.argument(name, draft.constants[name], doc=doc)
    draft.argument("kernel_size", (taps, taps), doc="Size of the depthwise kernel")
    call = ["kernel_size"]
    for name, value, default in (("stride", rng.choice((1, 1, 2)), 1), ("padding", taps // 2, 0)):
        draft.argument(name, (value, value), default=default)
        call.append(f"{name}={name}")
    has_bias = rng.random() < 0.5
    bias = "" if has_bias else ", bias=False"
    draft.line(f"self.depthwise = nn.Conv2d({cin}, {cin}, {', '.join(call)}, groups={cin}{bias})")
    draft.line(f"self.pointwise = nn.Conv2d({cin}, {cout}, kernel_size=1{bias})")
    draft.input("x", (B, cin, H, W), is_first=True)
    draft.steps += ["self.depthwise({x})", "self.pointwise({x})"]
    draft.op("depthwise_separable", "a depthwise convolution")
    draft.op("conv2d_pointwise", "a pointwise convolution")
    _depthwise(draft, 2, "depthwise", False, "default" if has_bias else "none")
    _pointwise(draft, "pointwise", "default" if has_bias else "none")
