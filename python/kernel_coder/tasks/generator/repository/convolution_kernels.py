"""Kernels of convolutions: implicit matrix products, depthwise ones, and products over channels for a single tap."""

from __future__ import annotations

from kernel_coder.tasks.generator.repository.draft import Draft, Kernel

AXES = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}
TILE = {"BM": 64, "BK": 32}
"""Output positions and depth of a program's tile; the width BN follows the number of channels, up to 64."""


def _bias(kernel: Kernel, layer: str, bias: str) -> None:
    """Adds the layer's bias, if it may have one."""
    if bias == "none":
        return
    add = f"{kernel.value} += {kernel.channel.format(p='b_ptr')}"
    kernel.pointers.insert(2, ("b_ptr", f"{layer}.bias"))
    kernel.head += ["if b_ptr is not None:", f"    {add}"] if bias == "argument" else [add]


def letters(ndim: int) -> list[tuple[str, str]]:
    return [(axis, axis.lower()) for axis in AXES[ndim]]


def positions(ndim: int, source: str) -> list[str]:
    """Return the lines that give the output coordinates of the positions `source`, outermost first."""
    axes = letters(ndim)
    lines = []
    for at, (_, small_letter) in enumerate(axes):
        after = [f"O{axis}" for axis, _ in axes[at + 1 :]]
        divided = source
        if after:
            divided += " // " + (after[0] if len(after) == 1 else f"({' * '.join(after)})")
        lines.append(f"o{small_letter} = {divided}" + (f" % O{axes[at][0]}" if at else ""))
    return lines


def _setup(ndim: int, layer: str, transposed: bool, out: str, *, grouped: bool) -> list[str]:
    """Return the lines of ``forward`` that name the sizes and make the output.

    One line gives the output's extents for all axes, since long answers are cut off and have more mistakes.
    """
    axes = letters(ndim)
    comma = "," * (ndim == 1)
    lines = [
        f"c = self.{layer}",
        f"B, C, {', '.join(axis for axis, _ in axes)} = x.shape",
        "OC = c.out_channels",
        f"{', '.join(f'K{axis}' for axis, _ in axes)}{comma} = c.kernel_size",
    ]
    if grouped:
        lines.append("G = c.groups")
    outs = ", ".join(f"O{axis}" for axis, _ in axes)
    sizes = "x.shape[2:], c.stride, c.padding, c.dilation, c.kernel_size"
    if transposed:
        extent = "(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, s, p, d, k, o"
        sizes += ", c.output_padding"
    else:
        extent = "(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, s, p, d, k"
    lines.append(f"{outs}{comma} = ({extent} in zip({sizes}))")
    lines.append(f"{out} = torch.empty((B, OC, {outs}), device=x.device, dtype=x.dtype)")
    return lines


def _steps(ndim: int) -> list[tuple[str, str]]:
    """Return the kernel's names of stride, padding and dilation, each with what ``forward`` passes."""
    return [
        (f"{name[0]}{low}", f"*c.{name}" * (at == 0))
        for name in ("stride", "padding", "dilation")
        for at, (_, low) in enumerate(letters(ndim))
    ]


def implicit(draft: Draft, ndim: int, layer: str, transposed: bool, bias: str, grouped: bool) -> Kernel:
    axes = letters(ndim)
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
        *(positions(ndim, "s") if ndim > 1 else []),
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
        else:
            head.append(f"    {low} = (o{low} * s{low} - p{low})[:, None] + ({tap} * d{low})[None, :]")
        is_inside, coordinate = _place(axis, low, transposed)
        inside.append(is_inside)
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
    scalars = [("P", "P"), ("C", "C // G" if grouped else "C"), ("OC", "OC // G" if grouped else "OC")]
    scalars += [("G", "G")] * grouped + [(name, name) for name in names] + [(f"O{name}", f"O{name}") for name in names]
    scalars += _steps(ndim)
    setup = _setup(ndim, layer, transposed, out, grouped=grouped)
    setup += [f"P = B * {space}", f"BN = min(64, max(16, triton.next_power_of_2(OC{' // G' if grouped else ''})))"]
    kernel = Kernel(
        name=f"conv{'_transpose' * transposed}{ndim}d_kernel",
        thought="each program computes a tile of output positions and channels as an implicit matrix product over"
        " channels and taps",
        pointers=[("x_ptr", "x"), ("w_ptr", "c.weight"), ("out_ptr", out)],
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
    _bias(kernel, "c", bias)
    return draft.open(kernel)


def depthwise(draft: Draft, ndim: int, layer: str, transposed: bool, bias: str) -> Kernel:
    """Open a kernel with one output element for each lane, since depthwise convolutions share nothing between
    channels."""
    axes = letters(ndim)
    out = draft.variable()
    head = [
        "i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "mask = i < n",
        *positions(ndim, "i"),
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
        else:
            head.append(f"{indent}{low} = o{low} * s{low} - p{low} + k{low} * d{low}")
        is_inside, coordinate = _place(axis, low, transposed)
        inside.append(is_inside)
        index = f"({index}) * {axis} + {coordinate}" if " " in index else f"{index} * {axis} + {coordinate}"
    head += [
        f"{indent}inside = {' & '.join(inside)}",
        f"{indent}x = tl.load(x_ptr + {index}, mask=inside, other=0.0)",
        f"{indent}acc += x * tl.load(w_ptr + {tap}, mask=mask, other=0.0)",
    ]
    names = [axis for axis, _ in axes]
    scalars = [("n", "n"), ("C", "C"), *[(name, name) for name in names], *[(f"O{name}", f"O{name}") for name in names]]
    scalars += _steps(ndim)
    kernel = Kernel(
        name=f"depthwise_conv{'_transpose' * transposed}{ndim}d_kernel",
        thought="each program computes a block of outputs, each from the taps of its own channel",
        pointers=[("x_ptr", "x"), ("w_ptr", "c.weight"), ("out_ptr", out)],
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
    _bias(kernel, "c", bias)
    return draft.open(kernel)


def _place(axis: str, low: str, transposed: bool) -> tuple[str, str]:
    """Return two expressions: whether a tap is inside the input along an axis, and the coordinate that it reads."""
    if transposed:
        return f"({low} >= 0) & ({low} % s{low} == 0) & ({low} // s{low} < {axis})", f"{low} // s{low}"
    return f"({low} >= 0) & ({low} < {axis})", low


def pointwise(draft: Draft, layer: str, bias: str) -> Kernel:
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
    _bias(kernel, f"self.{layer}", bias)
    return draft.open(kernel)
