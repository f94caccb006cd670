"""Families with a sliding window: pooling and small convolutions."""

from __future__ import annotations

from kernel_coder.tasks.generator.layouts import NEG_INF, Layout, Tape
from kernel_coder.tasks.generator.pointwise import ACTIVATIONS, ARITHMETIC, BY_NAME, NORMAL, UNARY
from kernel_coder.tasks.generator.sketch import Sketch

MIXING_OPS = tuple(BY_NAME[name] for name in ("add", "sub", "mul", "maximum", "minimum"))
_BEFORE = tuple(op for op in UNARY if op.name not in ("cube", "exp"))


class Pooled(Layout):
    """Blocks of neighbouring outputs; each gathers its window in a loop."""

    def index(self, kind: str) -> tuple[str, str | None]:
        return "index", "mask"


def pooling(s: Sketch) -> None:
    """Generate max and average pooling in one and two dimensions, with padding and strides."""
    rng = s.rng
    rank = rng.choice((1, 2, 2))
    is_max = rng.random() < 0.5
    size = rng.choice((2, 3) if rank == 2 else (2, 3, 4, 5))
    stride = rng.choice((1, 2, size))
    padding = rng.choice((0, 0, 1)) if size > 2 else 0
    shape = [s.size("batch_size", rng.choice((1, 2))), s.size("channels", rng.choice((2, 3, 4)))]
    if rank == 2:
        shape += [s.size("height", rng.choice((8, 9, 11, 12))), s.size("width", rng.choice((7, 8, 10, 13)))]
    else:
        shape.append(s.size("length", rng.choice((24, 33, 50, 64))))
    s.tensor("x", shape)
    layout = Pooled(s)
    kernel = layout.kernel
    kernel.pointer("x", "x")
    tape = Tape(layout, (0.0, 1.0) if "rand(" in s.inputs["x"] else NORMAL)

    before = rng.randint(0, s.level + 1)
    tape.chain(before, _BEFORE)
    inner, kernel.steps = kernel.steps, []  # what happens to an element before it is pooled goes into the loop
    kernel.head = _window_loop(rank, is_max, padding > 0, inner)
    layout.var = "acc"
    if not is_max:
        tape.span = (tape.span[0] / 2, tape.span[1] / 2)  # means lie closer together
        kernel.steps.append(f"acc = acc / ({' * '.join(['SIZE'] * rank)})")
    tape.raw = False

    kind = "max" if is_max else "avg"
    as_layer = rng.random() < 0.5
    padded = [f"padding={padding}"] * (padding > 0)
    if as_layer:
        size_text, stride_text = s.setting("kernel_size", str(size)), s.setting("stride", str(stride))
        options = ", ".join(["kernel_size", "stride=stride", *padded])
        s.modules.append(f"self.pool = nn.{kind.capitalize()}Pool{rank}d({options})")
        s.step("self.pool(x)")
    else:
        size_text, stride_text = str(size), str(stride)
        options = ", ".join([f"kernel_size={size}", f"stride={stride}", *padded])
        s.step(f"F.{kind}_pool{rank}d(x, {options})")
    s.ops.append(f"{kind}_pool{rank}d")
    tape.chain(s.level + 1 - before, (*ACTIVATIONS, *ARITHMETIC))
    layout.store("acc")
    s.name_kernel(kernel)

    sizes = ("H", "W") if rank == 2 else ("L",)
    kernel.scalar("numel", "out.numel()")
    for name in (*sizes, *(f"O{name}" for name in sizes)):
        kernel.scalar(name)
    kernel.block("SIZE", size_text)
    kernel.block("STRIDE", stride_text)
    if padding:
        kernel.block("PAD", str(padding))
    kernel.block("BLOCK", "1024")
    s.contiguous()
    s.forward.append(f"batch, channels, {', '.join(sizes)} = x.shape")
    grown = f" + 2 * {padding}" * (padding > 0)
    s.forward += [f"O{name} = ({name}{grown} - {size_text}) // {stride_text} + 1" for name in sizes]
    out = ", ".join(f"O{name}" for name in sizes)
    s.forward.append(f"out = torch.empty((batch, channels, {out}), device=x.device, dtype=x.dtype)")
    s.forward += kernel.launch("(triton.cdiv(out.numel(), 1024),)")


def _window_loop(rank: int, is_max: bool, padded: bool, inner: list[str]) -> list[str]:
    """Return the lines that gather `acc` from the windows of a block of outputs; `inner` changes each element first."""
    axes: tuple[tuple[str, str, str], ...]
    if rank == 2:
        places = ["ow = index % OW", "oh = index // OW % OH", "plane = index // (OH * OW)"]
        axes, offset = (("h", "i", "H"), ("w", "j", "W")), "(plane * H + h) * W + w"
    else:
        places, axes, offset = ["ot = index % OL", "plane = index // OL"], (("t", "i", "L"),), "plane * L + t"
    start = NEG_INF if is_max else "0.0"
    body = [f"{name} = o{name} * STRIDE{' - PAD' * padded} + {step}" for name, step, _ in axes]
    guard = "mask"
    if padded:
        guard = "inside"
        body.append(" & ".join(["inside = mask", *(f"({name} >= 0) & ({name} < {size})" for name, _, size in axes)]))
    body.append(f"x = tl.load(x_ptr + {offset}, mask={guard}, other={'0.0' if inner else start})")
    body += inner
    if inner and padded:
        body.append(f"x = tl.where(inside, x, {start})")
    body.append("acc = tl.maximum(acc, x)" if is_max else "acc += x")
    zeros = f"full((BLOCK,), {start}" if is_max else "zeros((BLOCK,)"
    return [
        "index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "mask = index < numel",
        *places,
        f"acc = tl.{zeros}, dtype=tl.float32)",
        *(f"{'    ' * depth}for {step} in range(SIZE):" for depth, (_, step, _) in enumerate(axes)),
        *("    " * rank + line for line in body),
    ]


class Convolved(Layout):
    """A tile of output pixels by output channels, accumulated over input channels and window at once."""

    var = "acc"

    def index(self, kind: str) -> tuple[str, str | None]:
        if kind == "last":  # one value a channel
            return "cols[None, :]", "cols[None, :] < N"
        return self.out, "mask"

    out = ""


def conv1d(s: Sketch) -> None:
    """Generate a convolution over sequences, as a matrix product of windows and weights."""
    _convolution(s, 1)


def conv2d(s: Sketch) -> None:
    """Generate a convolution over small images, as a matrix product of windows and weights."""
    _convolution(s, 2)


def _convolution(s: Sketch, rank: int) -> None:
    rng = s.rng
    size = rng.choice((1, 2, 3)) if rank == 2 else rng.choice((2, 3, 5))
    stride = rng.choice((1, 1, 2))
    padding = rng.choice((0, size // 2))
    batch = s.size("batch_size", rng.choice((1, 2)))
    channels = [s.size("in_channels", rng.choice((2, 3, 4))), s.size("out_channels", rng.choice((3, 4, 6, 8)))]
    if rank == 2:
        spatial = [s.size("height", rng.choice((6, 7, 8))), s.size("width", rng.choice((6, 8, 9)))]
    else:
        spatial = [s.size("length", rng.choice((20, 30, 33, 48)))]
    s.tensor("x", (batch, channels[0], *spatial))
    for name in channels:
        s.argument(name)
    has_bias = rng.random() < 0.7
    options = [str(size), *[f"stride={stride}"] * (stride > 1), *[f"padding={padding}"] * (padding > 0)]
    if rng.random() < 0.6:
        s.argument("kernel_size", str(size))
        options[0] = "kernel_size"
    options += ["bias=False"] * (not has_bias)
    s.state.append(f"self.conv = nn.Conv{rank}d(in_channels, out_channels, {', '.join(options)})")
    s.step("self.conv(x)")
    s.ops.append(f"conv{rank}d" + "_no_bias" * (not has_bias))

    layout = Convolved(s)
    kernel = layout.kernel
    kernel.pointer("x", "x")
    kernel.pointer("w", "self.conv.weight")
    moved = "" if stride == 1 else " * STRIDE"
    back = " - PAD" if padding else ""
    guard = "(rows[:, None] < M) & (ks[None, :] < K)"
    if rank == 2:
        layout.out = "((n * N + cols[None, :]) * OH + oh) * OW + ow"
        kernel.head = [
            "rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
            "cols = tl.arange(0, BLOCK_N)",
            "ow = (rows % OW)[:, None]",
            "oh = (rows // OW % OH)[:, None]",
            "n = (rows // (OH * OW))[:, None]",
            "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            "for k in range(0, K, BLOCK_K):",
            "    ks = k + tl.arange(0, BLOCK_K)",
            f"    w = ow{moved}{back} + (ks % SIZE)[None, :]",
            f"    h = oh{moved}{back} + (ks // SIZE % SIZE)[None, :]",
            "    c = (ks // (SIZE * SIZE))[None, :]",
            f"    x_mask = {guard}",
            *["    x_mask = x_mask & (h >= 0) & (h < H) & (w >= 0) & (w < W)"] * (padding > 0),
            "    x = tl.load(x_ptr + ((n * C + c) * H + h) * W + w, mask=x_mask, other=0.0)",
        ]
        sizes, scalars = ["H", "W"], ["M", "N", "K", "C", "H", "W", "OH", "OW"]
    else:
        layout.out = "(n * N + cols[None, :]) * OL + ot"
        kernel.head = [
            "rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
            "cols = tl.arange(0, BLOCK_N)",
            "ot = (rows % OL)[:, None]",
            "n = (rows // OL)[:, None]",
            "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            "for k in range(0, K, BLOCK_K):",
            "    ks = k + tl.arange(0, BLOCK_K)",
            f"    t = ot{moved}{back} + (ks % SIZE)[None, :]",
            "    c = (ks // SIZE)[None, :]",
            f"    x_mask = {guard}",
            *["    x_mask = x_mask & (t >= 0) & (t < L)"] * (padding > 0),
            "    x = tl.load(x_ptr + (n * C + c) * L + t, mask=x_mask, other=0.0)",
        ]
        sizes, scalars = ["L"], ["M", "N", "K", "C", "L", "OL"]
    kernel.head += [
        "    w_mask = (ks[:, None] < K) & (cols[None, :] < N)",
        "    weight = tl.load(w_ptr + cols[None, :] * K + ks[:, None], mask=w_mask, other=0.0)",
        '    acc += tl.dot(x, weight, input_precision="ieee")',
        "mask = (rows[:, None] < M) & (cols[None, :] < N)",
    ]
    for name in scalars:
        kernel.scalar(name)
    tape = Tape(layout, (-1.5, 1.5))
    tape.error = 2e-7
    tape.raw = False
    if has_bias:
        tape.operand("bias", "self.conv.bias", "last")
        tape.say("{x} += bias")
    _after_convolution(tape, rank, channels[1])
    layout.store("acc")
    s.name_kernel(kernel)
    s.contiguous()
    s.forward += [
        f"batch, C, {', '.join(sizes)} = x.shape",
        "N, size = self.conv.out_channels, self.conv.kernel_size[0]",
    ]
    grown = f" + 2 * {padding}" * (padding > 0)
    over = f"({{}}) // {stride}" if stride > 1 else "{}"
    s.forward += [f"O{name} = {over.format(f'{name}{grown} - size')} + 1" for name in sizes]
    out = ", ".join(f"O{name}" for name in sizes)
    s.forward += [
        f"M, K = batch * {out.replace(', ', ' * ')}, C * {' * '.join(['size'] * rank)}",
        f"out = torch.empty((batch, N, {out}), device=x.device, dtype=x.dtype)",
    ]
    kernel.block("SIZE", "size")
    if stride > 1:
        kernel.block("STRIDE", str(stride))
    if padding:
        kernel.block("PAD", str(padding))
    kernel.block("BLOCK_M", "64")
    kernel.block("BLOCK_N", "max(16, triton.next_power_of_2(N))")
    kernel.block("BLOCK_K", "32")
    s.forward += kernel.launch("(triton.cdiv(M, 64),)")


def _after_convolution(tape: Tape, rank: int, channels: str) -> None:
    s = tape.sketch
    plan = [False] * (s.level + 1)
    if s.level > 1 or (s.level == 1 and s.rng.random() < 0.5):
        plan[s.rng.randrange(len(plan))] = True
    for has_operand in plan:
        if has_operand:
            gain = s.parameter("gain", (channels, *["1"] * rank))
            tape.combine(MIXING_OPS, "gain", passed=gain, kind="last", label="_channel")
        else:
            tape.chain(1, (*ACTIVATIONS, *ARITHMETIC))
