"""Normalization: rows of one extent (layer, group, instance, RMS), and statistics over the batch."""

from __future__ import annotations

from kernel_coder.tasks.generator.pointwise import UnsuitableError
from kernel_coder.tasks.generator.repository.convolutions import EXTENT_NAMES
from kernel_coder.tasks.generator.repository.draft import Draft, Kernel
from kernel_coder.tasks.generator.repository.elementwise import flat_kernel
from kernel_coder.tasks.generator.repository.rows import LOOP, OFFSET, load, row_kernel
from kernel_coder.tasks.generator.repository.sizes import elements, large, shape

STATISTICS = (
    "row = tl.program_id(0).to(tl.int64)",
    "k = tl.load(x_ptr + row * R)",
    "s = tl.zeros((BLOCK,), tl.float32)",
    "q = tl.zeros((BLOCK,), tl.float32)",
    "for r0 in range(0, R, BLOCK):",
    "    r = r0 + tl.arange(0, BLOCK)",
    "    d = tl.where(r < R, tl.load(x_ptr + row * R + r, mask=r < R, other=0.0) - k, 0.0)",
    "    s += d",
    "    q += d * d",
    "shift = tl.sum(s, 0) / R",
    "var = tl.maximum(tl.sum(q, 0) / R - shift * shift, 0.0)",
)
"""Mean and variance in one pass. Differences to the row's first element keep the variance exact for large means."""


def _rows(draft: Draft, name: str, extents: list[str], thought: str, eps: str) -> Kernel:
    """Opens a kernel that normalizes contiguous rows of R elements, with one program for each row."""
    source, out = draft.value, draft.variable()
    return draft.open(
        Kernel(
            name=f"{name}_kernel",
            thought=thought,
            pointers=[("x_ptr", source), ("out_ptr", out)],
            scalars=[("R", "R"), ("eps", eps)],
            blocks=[("BLOCK", "BLOCK")],
            head=[
                *STATISTICS,
                "scale = 1.0 / tl.sqrt(var + eps)",
                "for r0 in range(0, R, BLOCK):",
                "    r = r0 + tl.arange(0, BLOCK)",
                "    x = tl.load(x_ptr + row * R + r, mask=r < R)",
                "    y = (x - k - shift) * scale",
            ],
            value="y",
            offset="row * R + r",
            mask="r < R",
            tail=["    tl.store(out_ptr + row * R + r, y, mask=r < R)"],
            setup=[*extents, "BLOCK = min(triton.next_power_of_2(R), 4096)", f"{out} = torch.empty_like({source})"],
            grid=f"({source}.numel() // R,)",
            out=out,
            indent="    ",
        )
    )


def _eps(draft: Draft, layer: bool = True, share: float = 0.4) -> str:
    """Draws an epsilon and returns it as text of the layer's call, empty for the default."""
    rng = draft.rng
    if rng.random() < share:
        value = rng.choice((1e-5, 1e-5, 1e-6, 1e-3))
        return draft.argument(draft.free("eps"), (value, value), "float", 1e-5, "Number added to the variance")
    return ""


def _momentum(draft: Draft, eps: str) -> str:
    """Return the text of epsilon, if it has a name, and in some modules of a momentum, which outputs do not show."""
    text = eps and f", eps={eps}"
    if draft.rng.random() < (0.5 if eps else 0.05):
        value = draft.rng.choice((0.1, 0.1, 0.01))
        name = draft.argument(draft.free("momentum"), (value, value), "float", 0.1, "Weight of the newest statistics")
        text += f", momentum={name}"
    return text


def layer_norm(draft: Draft, *, features: str = "") -> None:
    """Generate nn.LayerNorm over the last dimensions."""
    rng = draft.rng
    if not features:
        ndim = rng.choices((2, 3, 4), weights=(3, 3, 2))[0]
        dims = shape(draft, elements(rng), ndim)
        count = 1 if ndim == 2 else rng.randrange(1, ndim)
        last = dims[-count:]
        pair = tuple(
            (draft.constants[last[0]][side] if count == 1 else tuple(draft.constants[dim][side] for dim in last))
            for side in (0, 1)
        )
        argument = draft.argument(
            draft.free("normalized_shape"),
            (pair[0], pair[1]),
            "tuple" if count > 1 else "int",
            doc="Shape of the normalized dimensions",
            text=f"({', '.join(last)})" if count > 1 else "",
        )
        draft.input("x", dims, is_first=True)
    else:
        argument = features
    eps = _eps(draft, share=0.3)
    layer = draft.free(rng.choice(("norm", "ln", "layer_norm")))
    draft.line(f"self.{layer} = nn.LayerNorm({argument}{eps and f', eps={eps}'})")
    draft.steps.append(f"self.{layer}({{x}})")
    draft.op("layer_norm", "layer normalization")
    kernel = _rows(
        draft,
        "layer_norm",
        [f"R = self.{layer}.weight.numel()"],
        "each program finds a row's mean and variance in one pass and writes it in a second one",
        f"self.{layer}.eps",
    )
    kernel.pointers += [("w_ptr", f"self.{layer}.weight"), ("b_ptr", f"self.{layer}.bias")]
    kernel.head.append("    y = y * tl.load(w_ptr + r, mask=r < R) + tl.load(b_ptr + r, mask=r < R)")


def rms_norm(draft: Draft) -> None:
    """Generate division by the root mean square over the last dimension with a learnt gain, or over channels without
    one."""
    rng = draft.rng
    if rng.random() < 0.5:
        dims = shape(draft, elements(rng), rng.choice((2, 3)))
        size = dims[-1]
        argument = draft.argument(
            rng.choice(("dim", "hidden_size", "d_model", "num_features")),
            draft.constants[size],
            doc="Size of the last dimension",
        )
        value = rng.choice((1e-6, 1e-5))
        draft.argument("eps", (value, value), "float", value, "Number added to the mean square")
        draft.line("self.eps = eps")
        draft.line(f"self.weight = nn.Parameter(torch.ones({argument}))")
        draft.input("x", dims, is_first=True)
        draft.steps.append(
            rng.choice(
                (
                    "{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight",
                    "{x} / torch.sqrt(torch.mean({x} ** 2, dim=-1, keepdim=True) + self.eps) * self.weight",
                    "self.weight * ({x} * torch.rsqrt(torch.mean({x} * {x}, dim=-1, keepdim=True) + self.eps))",
                )
            )
        )
        dim = "-1"
        weight = True
    else:
        dims = shape(draft, elements(rng), rng.choice((3, 4)))
        argument = draft.argument(
            rng.choice(("num_features", "channels", "dim")), draft.constants[dims[1]], doc="Number of channels"
        )
        draft.argument("eps", (1e-5, 1e-5), "float", 1e-5, "Number added to the mean square")
        draft.line(f"self.{argument} = {argument}", is_kept=False)
        draft.line("self.eps = eps")
        draft.input("x", dims, is_first=True)
        draft.steps.append(
            rng.choice(
                (
                    "{x} / torch.sqrt(torch.mean({x} ** 2, dim=1, keepdim=True) + self.eps)",
                    "{x} * torch.rsqrt({x}.pow(2).mean(dim=1, keepdim=True) + self.eps)",
                )
            )
        )
        dim, weight = "1", False
    draft.op("rms_norm", "RMS normalization")
    kernel = row_kernel(
        draft,
        "rms_norm",
        "each program sums the squares of its rows in one pass and writes in a second one",
        [
            "acc = tl.zeros((BR, BI), tl.float32)",
            *LOOP,
            f"    {load('0.0')}",
            "    acc += x * x",
            "scale = 1.0 / tl.sqrt(tl.sum(acc, 0) / R + eps)",
            *LOOP,
            f"    {load('0.0')}",
            "    y = x * scale[None, :]",
        ],
        dim=dim,
        out="torch.empty_like({x})",
        reduced=False,
        value="y",
        tail=[f"    tl.store(out_ptr + {OFFSET}, y, mask=mask)"],
        indent="    ",
    )
    kernel.scalars.append(("eps", "self.eps"))
    if weight:
        kernel.pointers.append(("w_ptr", "self.weight"))
        kernel.head.append("    y = y * tl.load(w_ptr + r, mask=r < R, other=0.0)[:, None]")


def group_norm(draft: Draft, *, features: str = "") -> None:
    """Generate nn.GroupNorm, alone or in a chain of `features` channels."""
    rng = draft.rng
    if not features:
        _maps(draft, channels=rng.choice((16, 32, 64, 128)), small=rng.choice((4, 8)))
        features = next(
            name for name in draft.constants if draft.constants[name] == (draft.shape[0][1], draft.shape[1][1])
        )
        argument = draft.argument(
            "num_features" if rng.random() < 0.5 else "num_channels",
            draft.constants[features],
            doc="Number of channels",
        )
        groups = draft.argument("num_groups", (rng.choice((2, 4, 8)), 2), doc="Number of groups of channels")
        if rng.random() < 0.5:
            draft.arguments[-2:] = draft.arguments[:-3:-1]
    else:
        argument = features
        real, little = draft.constants[features]
        if little % 2 or real % 4:
            raise UnsuitableError("the channels do not fall into groups")
        groups = draft.argument(
            draft.free(rng.choice(("num_groups", "groups"))),
            (rng.choice([each for each in (2, 4, 8, 16) if real % each == 0]), 2),
            doc="Number of groups of channels",
        )
    eps = _eps(draft, share=0.25)
    layer = draft.free(rng.choice(("gn", "group_norm", "norm")))
    draft.line(f"self.{layer} = nn.GroupNorm({groups}, {argument}{eps and f', eps={eps}'})")
    draft.steps.append(f"self.{layer}({{x}})")
    draft.op("group_norm", "group normalization")
    source = draft.value
    kernel = _rows(
        draft,
        "group_norm",
        [
            f"G, C = self.{layer}.num_groups, {source}.shape[1]",
            f"R = {source}.numel() // ({source}.shape[0] * G)",
            "S = R * G // C",
        ],
        "each program normalizes one group of one sample, in two passes",
        f"self.{layer}.eps",
    )
    kernel.scalars += [("G", "G"), ("C", "C"), ("S", "S")]
    kernel.pointers += [("w_ptr", f"self.{layer}.weight"), ("b_ptr", f"self.{layer}.bias")]
    kernel.head += [
        "    c = row % G * (C // G) + r // S",
        "    y = y * tl.load(w_ptr + c, mask=r < R) + tl.load(b_ptr + c, mask=r < R)",
    ]
    kernel.channel = "tl.load({p} + c, mask=r < R)"


def instance_norm(draft: Draft, *, features: str = "", ndim: int = 0) -> None:
    """Generate nn.InstanceNorm, without learnt numbers: alone, over the maps of a chain, or over its rows of `features`
    (`ndim` is 0), which become a map of one channel."""
    rng = draft.rng
    if not features:
        ndim = _maps(draft, channels=rng.choice((3, 16, 32, 64)), small=3)
        name = next(name for name in draft.constants if draft.constants[name] == (draft.shape[0][1], draft.shape[1][1]))
        features = draft.argument("num_features", draft.constants[name], doc="Number of channels")
    layer = draft.free(rng.choice(("norm", "inorm", "instance_norm")))
    more = _momentum(draft, _eps(draft, share=0.1))
    extra = 0 if ndim else rng.choice((1, 2, 2))
    draft.line(f"self.{layer} = nn.InstanceNorm{ndim or extra}d({features}{more})", is_kept=True)
    draft.steps.append(f"self.{layer}({{x}}{'.unsqueeze(1)' * extra}){'.squeeze(1)' * extra}")
    draft.op("instance_norm", "instance normalization")
    source = draft.value
    if not ndim:
        thought = "each program normalizes one row, in two passes"
        kernel = _rows(draft, "instance_norm", [f"R = {source}.shape[1]"], thought, f"self.{layer}.eps")
        kernel.channel = "tl.load({p} + r, mask=r < R)"
        return
    kernel = _rows(
        draft,
        "instance_norm",
        [f"C = {source}.shape[1]", f"R = {source}.numel() // ({source}.shape[0] * C)"],
        "each program normalizes one channel of one sample, in two passes",
        f"self.{layer}.eps",
    )
    kernel.scalars.append(("C", "C"))
    kernel.channel = "tl.load({p} + row % C)"


def batch_norm(draft: Draft, *, features: str = "", ndim: int = 0) -> None:
    """Generate nn.BatchNorm: batch statistics in training, running ones in evaluation; running ones are not updated."""
    rng = draft.rng
    if not features:
        ndim = _maps(draft, channels=rng.choice((16, 32, 64)), small=3)
        name = next(name for name in draft.constants if draft.constants[name] == (draft.shape[0][1], draft.shape[1][1]))
        features = draft.argument("num_features", draft.constants[name], doc="Number of channels")
    eps = _eps(draft, share=0.2)
    layer = draft.free(rng.choice(("bn", "batch_norm", "norm")))
    more = _momentum(draft, eps)
    draft.line(f"self.{layer} = nn.BatchNorm{max(ndim, 1)}d({features}{more})")
    draft.steps.append(f"self.{layer}({{x}})")
    draft.op("batch_norm", "batch normalization")
    source = draft.value
    if ndim == 0:  # rows of features: statistics along the batch
        kernel = row_kernel(
            draft,
            "batch_stats",
            "each program finds mean and variance of a block of features over the batch",
            [
                "k = tl.load(x_ptr + i, mask=i < I, other=0.0)",
                "s = tl.zeros((BR, BI), tl.float32)",
                "q = tl.zeros((BR, BI), tl.float32)",
                *LOOP,
                f"    {load('0.0')}",
                "    d = tl.where(mask, x - k[None, :], 0.0)",
                "    s += d",
                "    q += d * d",
                "shift = tl.sum(s, 0) / R",
            ],
            dim="0",
            out="torch.empty((2, {x}.shape[1]), device={x}.device, dtype={x}.dtype)",
            reduced=True,
            value="shift",
            tail=[
                "tl.store(out_ptr + i, k + shift, mask=i < I)",
                "tl.store(out_ptr + I + i, tl.maximum(tl.sum(q, 0) / R - shift * shift, 0.0), mask=i < I)",
            ],
        )
        stats = kernel.out
        combine = f"mean, var = {stats}"
    else:
        kernel = _rows(
            draft,
            "batch_stats",
            [f"C = {source}.shape[1]", f"R = {source}.numel() // ({source}.shape[0] * C)"],
            "each program finds mean and variance of one channel of one sample",
            "0.0",
        )
        kernel.scalars.pop()
        stats = kernel.out
        kernel.head = list(STATISTICS)
        kernel.pointers[1] = ("out_ptr", stats)
        kernel.setup[-1] = (
            f"{stats} = torch.empty((2, {source}.shape[0], C), device={source}.device, dtype={source}.dtype)"
        )
        kernel.indent = ""
        kernel.tail = ["tl.store(out_ptr + row, k + shift)", "tl.store(out_ptr + tl.num_programs(0) + row, var)"]
        combine = f"mean, var = {stats}[0].mean(0), {stats}[1].mean(0) + {stats}[0].var(0, unbiased=False)"
    at = len(draft.kernels)
    draft.closing += [
        (at, combine),
        (at, f"if not self.{layer}.training:"),
        (at, f"    mean, var = self.{layer}.running_mean, self.{layer}.running_var"),
        (at, f"scale = self.{layer}.weight / (var + self.{layer}.eps).sqrt()"),
    ]
    draft.value = source
    second = flat_kernel(
        draft, "normalize", [("mean_ptr", "mean"), ("scale_ptr", "scale"), ("b_ptr", f"self.{layer}.bias")]
    )
    second.is_flat = False
    draft.taken |= {"mean_ptr", "scale_ptr", "b_ptr"}
    second.scalars += [("C", f"{source}.shape[1]"), *[("S", "R")] * (ndim > 0)]
    channel = "i // S % C" if ndim else "i % C"
    second.head += [
        f"c = {channel}",
        "x = (x - tl.load(mean_ptr + c, mask=mask)) * tl.load(scale_ptr + c, mask=mask)",
        "x = x + tl.load(b_ptr + c, mask=mask)",
    ]
    second.channel = "tl.load({p} + c, mask=mask)"
    second.thought = "each program normalizes a block of elements"


def _maps(draft: Draft, channels: int, small: int) -> int:
    """Add an input of shape (batch, channels, *space) and return the number of spatial dimensions."""
    rng = draft.rng
    ndim = rng.choices((1, 2, 3), weights=(1, 4, 1))[0]
    names = rng.choice(
        (("batch_size", "features"), ("batch_size", "channels"), ("N", "C"), ("batch_size", "num_channels"))
    )
    batch = rng.choice((2, 4, 8, 16, 32, 64, 112))
    side = max(4, (elements(rng) / batch / channels) ** (1 / ndim))
    B, C = draft.size(names[0], batch, 2), draft.size(names[1], channels, small)
    extents = rng.choice((*EXTENT_NAMES[ndim], *[(("dim1", "dim2", "dim3")[:ndim])]))
    equal = large(rng, side, 4)
    space = tuple(draft.size(name, equal, rng.choice((5, 6, 7))) for name in extents)
    draft.input("x", (B, C, *space), is_first=True)
    return ndim
