"""Convolutions of one to three dimensions as implicit matrix products: rows are output positions, columns output
channels, and the inner dimension runs over input channels and taps. The texts for different dimensions differ only in
the number of lines that are repeated for each axis."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_coder.tasks.generator.pointwise import UnsuitableError
from kernel_coder.tasks.generator.repository.convolution_kernels import AXES, depthwise, implicit, pointwise
from kernel_coder.tasks.generator.repository.draft import NO_DEFAULT, Draft
from kernel_coder.tasks.generator.repository.sizes import budget, large

EXTENT_NAMES = {
    1: (("length",), ("length",), ("sequence_length",), ("seq_len",), ("input_length",), ("L",)),
    2: (("height", "width"), ("height", "width"), ("width", "height"), ("height_in", "width_in"), ("H", "W")),
    3: (("depth", "height", "width"), ("D", "H", "W")),
}
"""Names of the input's extents."""


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
    is_flat = not is_tuple and ndim > 1 and style in ("plain", "depthwise", "dilated") and rng.random() < 0.1
    if is_flat:  # one tap along some axes
        alone = rng.choice([axes for axes in ((0,), (1,), (2,), (0, 1), (1, 2)) if len(axes) < ndim > max(axes)])
        taps = tuple(1 if at in alone else one for at, one in enumerate(taps))
    by_axis = ndim == 2 and style not in ("pointwise", "grouped") and not is_flat and rng.random() < 0.1
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
    may_be_literal = style in ("plain", "strided", "dilated") and ndim < 3 and not in_chain and not is_flat
    is_literal = may_be_literal and rng.random() < 0.06
    if is_literal:  # the call has numbers, which the solution shares, so they are those of both sizes
        c_in = s_in = rng.choice((1, 3, 3, 4))
        c_out = s_out = rng.choice((8, 12, 16, 24, 32))
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
    if in_chain and rng.random() < 0.35:  # room for pooling
        few = {1: (9, 13), 2: (6, 8), 3: (4, 5)}[ndim]
    little = [
        rng.choice(few) + (0 if transposed else dilation[at] * (taps[at] - 1) + stride[at] - 1) for at in range(ndim)
    ]
    if any(spec.extent(size, at) < 1 for sizes in (real, little) for at, size in enumerate(sizes)):
        raise UnsuitableError("the output is empty")

    B = draft.size("batch_size", batch, 2)
    cin = draft.size("in_channels", c_in, s_in)
    is_alone = style == "depthwise" and not in_chain and rng.random() < 0.55  # one name for both numbers of channels
    cout = cin if is_alone or is_literal else draft.size("out_channels", c_out, s_out)
    space = tuple(
        draft.size(name, a, b) for name, a, b in zip(rng.choice(EXTENT_NAMES[ndim]), real, little, strict=True)
    )
    in_full = {"plain": 0.6, "asymmetric": 0.5, "dilated": 0.3, "depthwise": 0.4}.get(style, 0.0)
    is_full = not in_chain and rng.random() < in_full  # every optional argument, as PyTorch has them
    call = [cin, cout] if not is_literal else [str(c_in), str(c_out)]
    if not is_literal:
        draft.argument(cin, (c_in, s_in), doc="Number of channels of the input")
    if cout != cin:
        draft.argument(cout, (c_out, s_out), doc="Number of channels of the output")
        if style == "depthwise" and rng.random() < 0.25:
            call[1] = cin
    plain: list[str] = []  # keywords that say what is PyTorch's default anyway
    as_tuples = is_tuple and rng.random() < 0.5

    def given(
        name: str, values: tuple[int, ...], default: int | None, doc: str, share: float, as_tuple: bool = False
    ) -> None:
        """Adds an argument of the layer: one of ``__init__``, a number in the call, or PyTorch's default."""
        same = len(set(values)) == 1
        value = tuple(values) if as_tuple or not same or (as_tuples and rng.random() < 0.65) else values[0]
        if is_literal:
            is_short = default is None and rng.random() < 0.5
            call.extend([] if same and values[0] == default else [repr(value) if is_short else f"{name}={value!r}"])
            return
        if by_axis:
            words = [f"{name}_{axis.lower()}" for axis in AXES[ndim]]
            for word, one in zip(words, values, strict=True):
                draft.argument(word, (one, one), "int", NO_DEFAULT if default is None else default, doc)
            call.append(f"({', '.join(words)})" if default is None else f"{name}=({', '.join(words)})")
            return
        kind = "tuple" if isinstance(value, tuple) else "int"
        if default is None:
            draft.argument(name, (value, value), kind, doc=doc)
            call.append(name)
            return
        is_default = same and values[0] == default
        if rng.random() < (share if is_default else 0.85):
            if is_default:
                plain.append(f"{name}={name}")
            usual = default if kind == "int" else (default,) * len(values)
            draft.argument(name, (value, value), kind, usual if not in_chain else NO_DEFAULT, doc)
            call.append(f"{name}={name}")
        elif not is_default:
            call.append(f"{name}={value!r}")

    if style == "pointwise":
        call.append("kernel_size=1" if rng.random() < 0.6 else "1")
        call += ["stride=1", "padding=0"] if rng.random() < 0.3 else []
    else:
        given("kernel_size", taps if not is_flat else (max(taps),) * ndim, None, "Size of the kernel", 1.0, is_tuple)
        if is_flat:
            taps_text = ("1" if at in alone else "kernel_size" for at in range(ndim))
            call[-1] = f"{rng.choice(('kernel_size=', ''))}({', '.join(taps_text)})"
        elif by_axis or is_literal:
            pass
        elif not is_tuple and ndim > 1 and rng.random() < (0.6 if is_full and style == "plain" else 0.25):
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
        if is_full and rng.random() < 0.3:  # an argument that nothing reads
            draft.argument("groups", (1, 1), "int", 1, "Number of groups of channels")
    elif has_groups:
        draft.argument("groups", groups_pair, "int", 1 if not in_chain else NO_DEFAULT, "Number of groups of channels")
        call.append("groups=groups")
    elif is_literal:
        pass
    elif (is_full and style != "dilated" and rng.random() < 0.85) or (
        not in_chain and style == "plain" and rng.random() < 0.25
    ):
        draft.argument("groups", (1, 1), "int", 1, "Number of groups of channels")
        call.append("groups=groups")
        has_groups = True
    weights = (0, 1, 5) if in_chain else (1, 0, 0) if is_full else (6, 1, 3)
    bias = rng.choices(("argument", "none", "default"), weights=weights if not is_literal else (0, 1, 3))[0]
    if bias == "argument":
        default = rng.choice((False, False, True) if not is_full else (False, False, False, False, True))
        draft.argument("bias", (default, default), "bool", default, "Whether a bias is added")
        call.append("bias=bias")
    elif bias == "none":
        call.append("bias=False")
    if plain and not in_chain and rng.random() < 0.12:  # an argument that is not passed on
        call.remove(rng.choice(plain))
    suffix = "transpose" if transposed else ""
    layer = draft.free(
        rng.choice(
            (
                f"conv{'_' * transposed}{suffix}",
                f"conv{'_' * transposed}{suffix}{ndim}d",
                f"conv{ndim}d{'_' * transposed}{suffix}",
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
        kernel = depthwise(draft, ndim, layer, transposed, bias)
    elif style == "pointwise":
        kernel = pointwise(draft, layer, bias)
    else:
        kernel = implicit(draft, ndim, layer, transposed, bias, has_groups)
    assert kernel
    return cout


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
    dilation = rng.choice((1, 1, 2))
    numbers = [("stride", rng.choice((1, 1, 2)), 1), ("padding", dilation * (taps // 2), 0), ("dilation", dilation, 1)]
    for name, value, default in numbers[: 2 + (dilation > 1 or rng.random() < 0.5)]:
        draft.argument(name, (value, value), default=default)
        call.append(f"{name}={name}")
    kind = rng.choice(("default", "none", "argument"))
    bias = {"default": "", "none": ", bias=False", "argument": ", bias=bias"}[kind]
    if kind == "argument":
        has_bias = rng.choice((False, False, True))
        draft.argument("bias", (has_bias, has_bias), "bool", has_bias, "Whether a bias is added")
    draft.line(f"self.depthwise = nn.Conv2d({cin}, {cin}, {', '.join(call)}, groups={cin}{bias})")
    draft.line(f"self.pointwise = nn.Conv2d({cin}, {cout}, kernel_size=1{bias})")
    draft.input("x", (B, cin, H, W), is_first=True)
    draft.steps += ["self.depthwise({x})", "self.pointwise({x})"]
    draft.op("depthwise_separable", "a depthwise convolution")
    draft.op("conv2d_pointwise", "a pointwise convolution")
    depthwise(draft, 2, "depthwise", False, kind)
    pointwise(draft, "pointwise", kind)
