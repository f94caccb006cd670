"""Pooling over windows of one to three dimensions, with one output element for each lane."""

from __future__ import annotations

from kernel_coder.tasks.generator.repository.convolution_kernels import letters, positions
from kernel_coder.tasks.generator.repository.convolutions import EXTENT_NAMES
from kernel_coder.tasks.generator.repository.draft import NO_DEFAULT, Draft, Kernel
from kernel_coder.tasks.generator.repository.sizes import elements, large


def pool_kernel(draft: Draft, ndim: int, kind: str, size: str, stride: str, padding: str, dilation: str) -> Kernel:
    """Opens a pooling kernel over the value so far; the four numbers are text of ``forward``, one for all axes."""
    axes = letters(ndim)
    source, out = draft.value, draft.variable()
    space = " * ".join(f"O{axis}" for axis, _ in axes)
    head = ["i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)", "mask = i < n", *positions(ndim, "i")]
    first = f"o{axes[0][1]}"
    head = [line if not line.startswith(f"{first} =") else f"{line} % O{axes[0][0]}" for line in head]
    head += [f"nc = i // ({space})" if ndim > 1 else "nc = i // OL"]
    is_max = kind == "max"
    head.append(
        'acc = tl.full((BLOCK,), float("-inf"), tl.float32)' if is_max else "acc = tl.zeros((BLOCK,), tl.float32)"
    )
    indent, inside, index = "", ["mask"], "nc"
    for axis, low in axes:
        head.append(f"{indent}for k{low} in range(K):")
        indent += "    "
        step = f"k{low} * dilation" if is_max else f"k{low}"
        head.append(f"{indent}{low} = o{low} * stride - padding + {step}")
        inside.append(f"({low} >= 0) & ({low} < {axis})")
        index = f"({index}) * {axis} + {low}" if " " in index else f"{index} * {axis} + {low}"
    head.append(f"{indent}inside = {' & '.join(inside)}")
    if is_max:
        head.append(f'{indent}acc = tl.maximum(acc, tl.load(x_ptr + {index}, mask=inside, other=float("-inf")))')
    else:
        head.append(f"{indent}acc += tl.load(x_ptr + {index}, mask=inside, other=0.0)")
        head.append(f"acc = acc / ({' * '.join(['K'] * ndim)})" if ndim > 1 else "acc = acc / K")
    names = [axis for axis, _ in axes]
    numbers = [("stride", stride), ("padding", padding), *[("dilation", dilation)] * is_max]
    setup = [f"B, C, {', '.join(names)} = {source}.shape", f"K, stride, padding = {size}, {stride}, {padding}"]
    if is_max:
        setup[-1] = f"K, stride, padding, dilation = {size}, {stride}, {padding}, {dilation}"
    span = "dilation * (K - 1) - 1" if is_max else "K"
    setup += [f"O{axis} = ({axis} + 2 * padding - {span}) // stride + 1" for axis in names]
    setup += [
        f"{out} = torch.empty((B, C, {', '.join(f'O{axis}' for axis in names)}),"
        f" device={source}.device, dtype={source}.dtype)",
        f"n = {out}.numel()",
    ]
    return draft.open(
        Kernel(
            name=f"{kind}_pool{ndim}d_kernel",
            thought=f"each program takes the {'maximum' if is_max else 'mean'} over the windows of a block of outputs",
            pointers=[("x_ptr", source), ("out_ptr", out)],
            scalars=[
                ("n", "n"),
                *[(name, name) for name in names],
                *[(f"O{name}", f"O{name}") for name in names],
                *[(name, name) for name, _ in numbers],
            ],
            blocks=[("K", "K"), ("BLOCK", "512")],
            head=head,
            value="acc",
            offset="i",
            mask="mask",
            tail=["tl.store(out_ptr + i, acc, mask=mask)"],
            setup=setup,
            grid="(triton.cdiv(n, 512),)",
            out=out,
        )
    )


def pool(draft: Draft, ndim: int, kind: str) -> None:
    """Generate a pooling layer alone."""
    rng = draft.rng
    size = rng.choice({1: (2, 3, 4, 5, 8), 2: (2, 3, 4, 5, 7, 11), 3: (2, 3, 4)}[ndim])
    stride = rng.choice((None, None, 1, 2, 3))
    padding = rng.choice((0, 0, 1, size // 2))
    padding = min(padding, size // 2)
    dilation = rng.choice((1, 1, 1, 2, 3)) if kind == "max" else 1
    least = dilation * (size - 1) + 1
    names = rng.choice(
        (("batch_size", "channels"), ("batch_size", "features"), ("batch_size", "in_channels"), ("N", "C"))
    )
    batch, channels = rng.choice((1, 2, 8, 16, 32, 64)), rng.choice((3, 16, 32, 64, 128))
    side = max(least + 2, int((elements(rng) / batch / channels) ** (1 / ndim)))
    B, C = draft.size(names[0], batch, 2), draft.size(names[1], channels, 3)
    extents = rng.choice(EXTENT_NAMES[ndim])
    equal = large(rng, side, least + 1)
    space = tuple(
        draft.size(name, equal if rng.random() < 0.7 else large(rng, side, least + 1), least + rng.choice((1, 2, 3, 5)))
        for name in extents
    )
    numbers = _layer(draft, ndim, kind, size, stride, padding, dilation, in_chain=False)
    draft.input("x", (B, C, *space), is_first=True)
    pool_kernel(draft, ndim, kind, *numbers)


def fits(draft: Draft) -> bool:
    """Return whether the maps so far are large enough for a pooling layer."""
    return min(*draft.shape[0][2:], *draft.shape[1][2:]) >= 3


def pool_after(draft: Draft, ndim: int, kind: str) -> None:
    """Generate a pooling layer in a chain; see :func:`fits`."""
    rng = draft.rng
    size = rng.choice((2, 2, 3))
    stride = None if rng.random() < 0.6 else 2
    pool_kernel(draft, ndim, kind, *_layer(draft, ndim, kind, size, stride, 0, 1, in_chain=True))
    step = stride or size
    before = draft.shape
    draft.shape = draft.both(lambda side: [*before[side][:2], *((one - size) // step + 1 for one in before[side][2:])])


def pool_rows(draft: Draft) -> None:
    """Generate max pooling along the rows of a matrix, which become a map of one channel."""
    rng = draft.rng
    source = draft.value
    numbers = _layer(draft, 1, "max", rng.choice((2, 2, 3, 4)), None, 0, 1, in_chain=True)
    draft.steps[-1] = draft.steps[-1].replace("({x})", "({x}.unsqueeze(1)).squeeze(1)")
    pool_kernel(draft, 1, "max", *numbers)
    setup = draft.kernels[-1].setup
    setup[0] = f"B, L = {source}.shape"
    setup[-2] = setup[-2].replace("(B, C, OL)", "(B, OL)")


def _layer(
    draft: Draft, ndim: int, kind: str, size: int, stride: int | None, padding: int, dilation: int, *, in_chain: bool
) -> tuple[str, str, str, str]:
    """Adds the layer and its arguments; returns size, stride, padding and dilation as text of ``forward``."""
    rng = draft.rng
    if in_chain and rng.random() < 0.4:
        argument, window = str(size), str(size)
    else:
        names = ("pool_kernel_size", "pool_kernel_size", "pool_size", f"{kind}pool_kernel_size")
        argument = draft.free(rng.choice(names) if in_chain else "kernel_size")
        draft.argument(argument, (size, size), doc="Size of the window")
        draft.line(f"self.{argument} = {argument}", is_shown=False)
        window = f"self.{argument}"
    call, forward = [f"kernel_size={argument}" if rng.random() < 0.5 else argument], {"K": window}
    if in_chain:
        forward |= {"stride": window if stride is None else str(stride), "padding": "0", "dilation": "1"}
        call += [] if stride is None else [f"stride={stride}"]
    else:
        given = [("stride", stride, None), ("padding", padding, 0)] + [("dilation", dilation, 1)] * (kind == "max")
        is_required = stride is not None and rng.random() < 0.3
        first = rng.choice((None, 1, 2)) if stride is not None else None  # default of the stride
        for name, value, default in given:
            is_default = value == default
            usual: object = first if name == "stride" else default
            if rng.random() < (0.6 if is_default else 0.9):
                draft.argument(
                    name,
                    (value, value),
                    "int",
                    NO_DEFAULT if is_required else usual,
                    {
                        "stride": "Step of the window",
                        "padding": "Padding on each side",
                        "dilation": "Spacing of the window's elements",
                    }[name],
                )
                draft.line(
                    f"self.{name} = {name}" if name != "stride" else f"self.stride = stride or {argument}",
                    is_shown=False,
                )
                call.append(f"{name}={name}")
                forward[name] = f"self.{name}"
            else:
                call += [] if is_default else [f"{name}={value}"]
                forward[name] = f"self.{argument}" if value is None else str(value)
        if kind == "max" and rng.random() < 0.4 and draft.arguments[-1].name == "dilation":
            for name in rng.choice((("return_indices", "ceil_mode"), ("return_indices",), ("ceil_mode",))):
                draft.argument(name, (False, False), "bool", False, name.replace("_", " ").capitalize())
                call.append(f"{name}={name}")
        forward.setdefault("dilation", "1")
    layer = draft.free(rng.choice(("pool", f"{kind}_pool", f"{kind}pool")))
    draft.line(
        f"self.{layer} = nn.{'MaxPool' if kind == 'max' else 'AvgPool'}{ndim}d({', '.join(call)})", is_kept=False
    )
    draft.steps.append(f"self.{layer}({{x}})")
    draft.op(f"{kind}_pool{ndim}d", f"{'max' if kind == 'max' else 'average'} pooling in {ndim}D")
    return forward["K"], forward["stride"], forward["padding"], forward["dilation"]
