"""Operations along one dimension: reductions, arg-reductions, softmax, norms, scans.

A contiguous tensor is seen as (O, R, I): R is the dimension's extent, I the product of those after it. A program has a
tile of BR x BI, which is as wide as memory access needs, and goes along R. So one kernel serves every dimension, with
whole rows of neighbours when the dimension is the last one and whole columns of them otherwise.
"""

from __future__ import annotations

from kernel_coder.tasks.generator.repository.draft import NO_DEFAULT, Draft, Kernel
from kernel_coder.tasks.generator.repository.elementwise import apply
from kernel_coder.tasks.generator.repository.sizes import elements, shape

HEAD = (
    "blocks = tl.cdiv(I, BI)",
    "o = (tl.program_id(0) // blocks).to(tl.int64)",
    "i = tl.program_id(0) % blocks * BI + tl.arange(0, BI)",
)
LOOP = ("for r0 in range(0, R, BR):", "    r = r0 + tl.arange(0, BR)", "    mask = (r < R)[:, None] & (i < I)[None, :]")
OFFSET = "(o * R + r[:, None]) * I + i[None, :]"
BLOCKS = [("BR", "BR"), ("BI", "BI")]
SIZES = ["BI = min(triton.next_power_of_2(I), 128)", "BR = min(triton.next_power_of_2(R), 2048 // BI)"]


def load(other: str) -> str:
    """Return a load of a tile within the loop."""
    return f"x = tl.load(x_ptr + {OFFSET}, mask=mask, other={other})"


def row_kernel(
    draft: Draft,
    name: str,
    thought: str,
    lines: list[str],
    *,
    dim: str,
    out: str,
    reduced: bool,
    value: str,
    tail: list[str],
    source: str = "",
    extents: list[str] | None = None,
    indent: str = "",
) -> Kernel:
    """Opens a kernel along a dimension.

    Args:
        draft: the module.
        name: of the kernel.
        thought: description of what a program does.
        lines: after :data:`HEAD`, up to where pointwise operations may join.
        dim: the dimension, as text of ``forward``.
        out: the expression in ``forward`` that makes the output, with ``{x}`` for the input.
        reduced: the output has one element for each (o, i).
        value: the variable of the result.
        tail: lines after the pointwise operations.
        source: variable of the input; empty: the value so far.
        extents: lines of ``forward`` that name R and I; None: from `dim`.
        indent: of the pointwise operations.
    """
    source = source or draft.value
    result = draft.variable()
    extents = extents or [f"R, I = {source}.shape[{dim}], {source}.stride({dim})"]
    return draft.open(
        Kernel(
            name=f"{name}_kernel",
            thought=thought,
            pointers=[("x_ptr", source), ("out_ptr", result)],
            scalars=[("R", "R"), ("I", "I")],
            blocks=list(BLOCKS),
            head=[*HEAD, *lines],
            value=value,
            offset="o * I + i" if reduced else OFFSET,
            mask="i < I" if reduced else "mask",
            tail=tail,
            setup=[*extents, *SIZES, f"{result} = {out.format(x=source)}"],
            grid=f"({source}.numel() // (R * I) * triton.cdiv(I, BI),)",
            out=result,
            indent=indent,
        )
    )


def _looped(*lines: str) -> list[str]:
    return [*LOOP, *("    " + line for line in lines)]


REDUCTIONS = {
    "sum": ("acc = tl.zeros((BR, BI), tl.float32)", "0.0", ("acc += x",), ("y = tl.sum(acc, 0)",), "a sum"),
    "mean": ("acc = tl.zeros((BR, BI), tl.float32)", "0.0", ("acc += x",), ("y = tl.sum(acc, 0) / R",), "a mean"),
    "max": (
        'acc = tl.full((BR, BI), float("-inf"), tl.float32)',
        'float("-inf")',
        ("acc = tl.maximum(acc, x)",),
        ("y = tl.max(acc, 0)",),
        "a maximum",
    ),
    "min": (
        'acc = tl.full((BR, BI), float("inf"), tl.float32)',
        'float("inf")',
        ("acc = tl.minimum(acc, x)",),
        ("y = tl.min(acc, 0)",),
        "a minimum",
    ),
    "norm": (
        "acc = tl.zeros((BR, BI), tl.float32)",
        "0.0",
        ("acc += x * x",),
        ("y = tl.sqrt(tl.sum(acc, 0))",),
        "an L2 norm",
    ),
    "l1": ("acc = tl.zeros((BR, BI), tl.float32)", "0.0", ("acc += tl.abs(x)",), ("y = tl.sum(acc, 0)",), "an L1 norm"),
    "mean_square": (
        "acc = tl.zeros((BR, BI), tl.float32)",
        "0.0",
        ("acc += x * x",),
        ("y = tl.sum(acc, 0) / R",),
        "a mean of squares",
    ),
}

TORCH = {
    "sum": ("torch.sum({x}, dim={d}{k})", "{x}.sum(dim={d}{k})", "{x}.sum({d}{k})"),
    "mean": ("torch.mean({x}, dim={d}{k})", "{x}.mean(dim={d}{k})", "{x}.mean({d}{k})"),
    "max": (
        *["torch.max({x}, dim={d}{k})[0]"] * 3,
        "torch.max({x}, dim={d}{k}).values",
        "{x}.max(dim={d}{k})[0]",
        "{x}.max(dim={d}{k}).values",
        "torch.amax({x}, dim={d}{k})",
    ),
    "min": (
        *["torch.min({x}, dim={d}{k})[0]"] * 3,
        "torch.min({x}, dim={d}{k}).values",
        "{x}.min(dim={d}{k})[0]",
        "{x}.min(dim={d}{k}).values",
        "torch.amin({x}, dim={d}{k})",
    ),
    "norm": ("torch.norm({x}, p=2, dim={d}{k})", "{x}.norm(dim={d}{k})", "torch.linalg.vector_norm({x}, dim={d}{k})"),
    "l1": ("torch.norm({x}, p=1, dim={d}{k})", "torch.sum(torch.abs({x}), dim={d}{k})", "{x}.abs().sum(dim={d}{k})"),
    "mean_square": ("torch.mean({x} ** 2, dim={d}{k})", "{x}.pow(2).mean(dim={d}{k})"),
    "logsumexp": ("torch.logsumexp({x}, dim={d}{k})", "{x}.logsumexp(dim={d}{k})"),
    "var": ("torch.var({x}, dim={d}, unbiased=False{k})", "{x}.var(dim={d}, unbiased=False{k})"),
    "std": ("torch.std({x}, dim={d}, unbiased=False{k})", "{x}.std(dim={d}, unbiased=False{k})"),
    "argmax": ("torch.argmax({x}, dim={d}{k})", "{x}.argmax(dim={d}{k})", "torch.max({x}, dim={d}{k})[1]"),
    "argmin": ("torch.argmin({x}, dim={d}{k})", "{x}.argmin(dim={d}{k})", "torch.min({x}, dim={d}{k})[1]"),
    "softmax": ("torch.softmax({x}, dim={d})", "F.softmax({x}, dim={d})", "{x}.softmax(dim={d})"),
    "log_softmax": ("torch.log_softmax({x}, dim={d})", "F.log_softmax({x}, dim={d})", "{x}.log_softmax(dim={d})"),
    "l2_normalize": (
        "F.normalize({x}, p=2, dim={d})",
        "F.normalize({x}, dim={d})",
        "{x} / torch.norm({x}, p=2, dim={d}, keepdim=True)",
        "{x} / {x}.norm(dim={d}, keepdim=True)",
    ),
    "l1_normalize": (
        "{x} / torch.sum(torch.abs({x}), dim={d}, keepdim=True)",
        "F.normalize({x}, p=1, dim={d})",
        "{x} / {x}.abs().sum(dim={d}, keepdim=True)",
    ),
    "mean_abs_normalize": (
        "{x} / torch.mean(torch.abs({x}), dim={d}, keepdim=True)",
        "{x} / {x}.abs().mean(dim={d}, keepdim=True)",
    ),
    "max_normalize": (
        "{x} / torch.amax(torch.abs({x}), dim={d}, keepdim=True)",
        "{x} / {x}.abs().amax(dim={d}, keepdim=True)",
    ),
    "center": ("{x} - torch.mean({x}, dim={d}, keepdim=True)", "{x} - {x}.mean(dim={d}, keepdim=True)"),
    "cumsum": ("torch.cumsum({x}, dim={d})", "{x}.cumsum(dim={d})", "{x}.cumsum({d})"),
    "cumprod": ("torch.cumprod({x}, dim={d})", "{x}.cumprod(dim={d})"),
    "cumsum_reverse": (
        "torch.cumsum({x}.flip({d}), dim={d}).flip({d})",
        "torch.flip(torch.cumsum(torch.flip({x}, [{d}]), dim={d}), [{d}])",
        "{x}.flip({d}).cumsum(dim={d}).flip({d})",
    ),
    "cumsum_exclusive": (
        "torch.cumsum({x}, dim={d}) - {x}",
        "{x}.cumsum(dim={d}) - {x}",
        "torch.cat([torch.zeros_like({x}.narrow({d}, 0, 1)), {x}.cumsum({d}).narrow({d}, 0, {x}.size({d}) - 1)], {d})",
        "torch.cumsum({x}, dim={d}).roll(1, {d}).index_fill({d}, torch.tensor([0], device={x}.device), 0.0)",
    ),
    "masked_cumsum": (
        "torch.cumsum({x} * mask, dim={d})",
        "({x} * mask).cumsum(dim={d})",
        "torch.cumsum({x}.masked_fill(~mask, 0.0), dim={d})",
    ),
    "flip": ("torch.flip({x}, [{d}])", "{x}.flip({d})", "torch.flip({x}, dims=[{d}])"),
}

PHRASES = {
    **{name: line[4] for name, line in REDUCTIONS.items()},
    **{
        "logsumexp": "a log-sum-exp",
        "var": "a variance",
        "std": "a standard deviation",
        "argmax": "the index of the maximum",
    },
    **{"argmin": "the index of the minimum", "softmax": "a softmax", "log_softmax": "a log-softmax"},
    **{"l2_normalize": "L2 normalization", "l1_normalize": "L1 normalization", "center": "a subtraction of the mean"},
    **{
        "mean_abs_normalize": "division by the mean absolute value",
        "max_normalize": "division by the largest magnitude",
    },
    **{
        "cumsum": "a cumulative sum",
        "cumprod": "a cumulative product",
        "cumsum_reverse": "a cumulative sum from the end",
    },
    **{"cumsum_exclusive": "an exclusive cumulative sum", "masked_cumsum": "a masked cumulative sum", "flip": "a flip"},
}


def reduce(draft: Draft, name: str, dim: str, *, keepdim: bool, prologue: list[str] | None = None) -> Kernel:
    """Generate a reduction of the value so far over a dimension."""
    before = prologue or []
    out = f"torch.empty_like({{x}}.{f'narrow({dim}, 0, 1)' if keepdim else f'select({dim}, 0)'})"
    if name in REDUCTIONS:
        start, other, loop, end, _ = REDUCTIONS[name]
        if before:  # values computed from masked elements must not count
            before = [*before, f"x = tl.where(mask, x, {other})"]
        lines = [start, *_looped(load(other), *before, *loop), *end]
        thought = f"each program reduces a tile along the dimension and stores its {name.replace('_', ' ')}"
    elif name == "logsumexp":
        lines = [*_online(before), "y = top + tl.log(total)"]
        thought = "each program keeps a running maximum and a rescaled sum of exponentials"
    elif name in ("var", "std"):
        lines = [
            "k = tl.load(x_ptr + o * R * I + i, mask=i < I, other=0.0)",
            "s = tl.zeros((BR, BI), tl.float32)",
            "q = tl.zeros((BR, BI), tl.float32)",
            *_looped(load("0.0"), "d = tl.where(mask, x - k[None, :], 0.0)", "s += d", "q += d * d"),
            "mean = tl.sum(s, 0) / R",
            "y = tl.sum(q, 0) / R - mean * mean",
            *["y = tl.sqrt(tl.maximum(y, 0.0))"] * (name == "std"),
        ]
        thought = "each program sums differences to the first element and their squares in one pass"
    else:
        largest = name == "argmax"
        worst = 'float("-inf")' if largest else 'float("inf")'
        lines = [
            f"best = tl.full((BR, BI), {worst}, tl.float32)",
            "where = tl.zeros((BR, BI), tl.int32)",
            *_looped(
                load(worst),
                f"better = x {'>' if largest else '<'} best",
                "best = tl.where(better, x, best)",
                "where = tl.where(better, r[:, None], where)",
            ),
            f"top = tl.{'max' if largest else 'min'}(best, 0)",
            "y = tl.min(tl.where(best == top[None, :], where, R), 0)",
        ]
        out = out[:-1] + ", dtype=torch.int64)"
        thought = "each program keeps the best value and its index, and the first index wins ties"
    return row_kernel(
        draft,
        name,
        thought,
        lines,
        dim=dim,
        out=out,
        reduced=True,
        value="y",
        tail=["tl.store(out_ptr + o * I + i, y, mask=i < I)"],
    )


def _online(before: list[str]) -> list[str]:
    """Return the lines that end with the maximum `top` and the sum of exponentials `total` of each row."""
    fix = ["x = tl.where(mask, x, -1e38)"] if before else []
    return [
        "top = tl.full((BR, BI), -1e38, tl.float32)",
        "total = tl.zeros((BR, BI), tl.float32)",
        *_looped(
            load("-1e38"),
            *before,
            *fix,
            "new = tl.maximum(top, x)",
            "total = total * tl.exp(top - new) + tl.exp(x - new)",
            "top = new",
        ),
        "new = tl.max(top, 0)",
        "total = tl.sum(total * tl.exp(top - new[None, :]), 0)",
        "top = new",
    ]


_SCALES = {
    "l2_normalize": (
        "acc += x * x",
        "scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(acc, 0)), 1e-12)",
        "y = x * scale[None, :]",
    ),
    "l1_normalize": ("acc += tl.abs(x)", "scale = 1.0 / tl.maximum(tl.sum(acc, 0), 1e-12)", "y = x * scale[None, :]"),
    "mean_abs_normalize": ("acc += tl.abs(x)", "scale = R / tl.sum(acc, 0)", "y = x * scale[None, :]"),
    "max_normalize": ("acc = tl.maximum(acc, tl.abs(x))", "scale = 1.0 / tl.max(acc, 0)", "y = x * scale[None, :]"),
    "center": ("acc += x", "mean = tl.sum(acc, 0) / R", "y = x - mean[None, :]"),
}


def rescale(draft: Draft, name: str, dim: str) -> Kernel:
    """Generate an operation that reads a row twice: once for its statistics, once for the result."""
    if name in ("softmax", "log_softmax"):
        last = (
            "y = tl.exp(x - top[None, :]) / total[None, :]"
            if name == "softmax"
            else "y = x - top[None, :] - tl.log(total)[None, :]"
        )
        lines = [*_online([]), *_looped(load("0.0"), last)]
        thought = "each program finds the maximum and the sum of exponentials in one pass, and writes in a second one"
    else:
        add, end, last = _SCALES[name]
        lines = ["acc = tl.zeros((BR, BI), tl.float32)", *_looped(load("0.0"), add), end, *_looped(load("0.0"), last)]
        thought = "each program computes the statistics of its rows in one pass, and writes in a second one"
    kernel = row_kernel(
        draft,
        name,
        thought,
        lines,
        dim=dim,
        out="torch.empty_like({x})",
        reduced=False,
        value="y",
        tail=[f"    tl.store(out_ptr + {OFFSET}, y, mask=mask)"],
        indent="    ",
    )
    if dim == "1":
        kernel.channel = "tl.load({p} + r, mask=r < R)[:, None]"
    return kernel


def scan(draft: Draft, name: str, dim: str) -> Kernel:
    """Generate a cumulative operation: the last element of each tile is carried to the next one."""
    product = name == "cumprod"
    start, join, other = (
        ("tl.full((BI,), 1.0, tl.float32)", "*", "1.0") if product else ("tl.zeros((BI,), tl.float32)", "+", "0.0")
    )
    index = "(R - 1 - r)" if name == "cumsum_reverse" else "r"
    offset = f"(o * R + {index}[:, None]) * I + i[None, :]"
    lines = [
        f"carry = {start}",
        *_looped(
            f"x = tl.load(x_ptr + {offset}, mask=mask, other={other})",
            *[f"x = tl.where(tl.load(mask_ptr + {offset}, mask=mask, other=0) != 0, x, 0.0)"]
            * (name == "masked_cumsum"),
            f"y = tl.{'cumprod' if product else 'cumsum'}(x, 0) {join} carry[None, :]",
            "carry = tl.sum(tl.where((tl.arange(0, BR) == BR - 1)[:, None], y, 0.0), 0)",
        ),
    ]
    kernel = row_kernel(
        draft,
        name,
        "each program goes along the dimension and carries the last value of a tile to the next",
        lines,
        dim=dim,
        out="torch.empty_like({x})",
        reduced=False,
        value="y",
        tail=[f"    tl.store(out_ptr + {offset}, y, mask=mask)"],
        indent="    ",
    )
    if name == "cumsum_exclusive":
        kernel.steps.append("y = y - x")
    return kernel


RESCALINGS = ("softmax", "log_softmax", *_SCALES)
SCANS = ("cumsum", "cumprod", "cumsum_reverse", "cumsum_exclusive", "masked_cumsum")
ARGS = ("argmax", "argmin")
ALL_REDUCTIONS = (*REDUCTIONS, "logsumexp", "var", "std", *ARGS)


def along(draft: Draft, name: str, prologue: str = "") -> None:
    """Generate one of the operations above on a tensor of two to four dimensions, over any of them."""
    rng = draft.rng
    ndim = rng.choices((2, 3, 4), weights=(4, 4, 1))[0]
    dims = shape(draft, elements(rng), ndim)
    x = draft.input(rng.choice(("x", "x", "x", "input", "inputs", "tensor")), dims, is_first=True)
    dim = rng.choice((-1, -1, *range(ndim)))
    before: list[str] = []
    if prologue:
        apply(draft, prologue, style="call")
        before = draft.unfuse()
    if name == "masked_cumsum":
        mask = draft.input("mask", dims, "torch.randint(0, 2, ({shape})).bool()", "Boolean mask")
        draft.before.append(f"{mask} = {mask}.contiguous()")
    word = str(dim)
    if rng.random() < 0.6:
        names = [each for each in ("dim", "dim", "axis", "reduce_dim") if each not in draft.taken]
        argument = draft.free(rng.choice(names))

        draft.argument(
            argument,
            (dim, dim),
            default=NO_DEFAULT if rng.random() < 0.6 else dim,
            doc="Dimension to work along",
        )
        draft.line(f"self.{argument} = {argument}")
        word = f"self.{argument}"
    keepdim = name in ALL_REDUCTIONS and rng.random() < 0.5
    text = rng.choice(TORCH[name]).replace("{d}", word).replace("{k}", ", keepdim=True" if keepdim else "")
    layers = {"softmax": "nn.Softmax", "log_softmax": "nn.LogSoftmax"}
    if name in layers and rng.random() < 0.3:
        layer = draft.free(name)
        draft.line(f"self.{layer} = {layers[name]}(dim={word.removeprefix('self.')})", is_kept=False)
        text = f"self.{layer}({{x}})"
    draft.steps.append(text)
    draft.op(name, f"{PHRASES[name]} along a dimension")
    if name in ALL_REDUCTIONS:
        reduce(draft, name, word, keepdim=keepdim, prologue=before)
    elif name in SCANS:
        kernel = scan(draft, name, word)
        if name == "masked_cumsum":
            kernel.pointers.append(("mask_ptr", "mask"))
    else:
        rescale(draft, name, word)
    if before:
        draft.kernels[-1].thought += ", with the operations before it applied as it loads"
    assert x
