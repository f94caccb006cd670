"""Matrix products: one kernel with strides serves plain, transposed and batched operands and linear layers."""

from __future__ import annotations

from kernel_coder.tasks.generator.repository.draft import Draft, Kernel
from kernel_coder.tasks.generator.repository.elementwise import flat_kernel
from kernel_coder.tasks.generator.repository.sizes import budget, elements, large, shape, small

TILE = {"BM": 64, "BN": 64, "BK": 32}
"""Rows, columns and depth of a program's tile. Multiples of 16, as ``tl.dot`` needs."""

BLOCKS = [(name, str(size)) for name, size in TILE.items()]


def tile_kernel(
    draft: Draft,
    name: str,
    a: str,
    b: str,
    *,
    dims: list[str],
    allocate: str,
    batched: str = "",
    loop: str = "range(0, K, BK)",
) -> Kernel:
    """Opens a product of `a` and `b`, which are variables of ``forward``.

    Args:
        draft: the module.
        name: of the kernel.
        a: left operand, of shape (M, K), or (batch, M, K).
        b: right operand, of shape (K, N), or (batch, K, N).
        dims: lines of ``forward`` that name M, N and K, and the batch.
        allocate: shape of the output, as text.
        batched: which operands have a batch: empty, ``ab``, ``a`` or ``b``.
        loop: the values of k0.
    """
    out = draft.variable()
    head = ["tiles = tl.cdiv(N, BN)", "pid = tl.program_id(0)"]
    scalars = [(each, each) for each in ("M", "N", "K")]
    for operand, letters, variable in (("a", "mk", a), ("b", "kn", b)):
        places = [f"{operand}_stride_b"] if batched else []
        places += [f"{operand}_stride_{letter}" for letter in letters]
        short = [place.replace("_stride_", "_s") for place in places]
        scalars += [(word, f"{variable}.stride({at})") for at, word in enumerate(short)]
    if batched:
        head += [
            "batch = (pid // (tl.cdiv(M, BM) * tiles)).to(tl.int64)",
            "pid = pid % (tl.cdiv(M, BM) * tiles)",
        ]
    head += [
        "m = (pid // tiles).to(tl.int64) * BM + tl.arange(0, BM)",
        "n = (pid % tiles).to(tl.int64) * BN + tl.arange(0, BN)",
        "acc = tl.zeros((BM, BN), tl.float32)",
        f"for k0 in {loop}:",
        "    k = (k0 + tl.arange(0, BK)).to(tl.int64)",
        f"    a_offset = {'batch * a_sb + ' if batched else ''}m[:, None] * a_sm + k[None, :] * a_sk",
        "    a = tl.load(a_ptr + a_offset, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)",
        f"    b_offset = {'batch * b_sb + ' if batched else ''}k[:, None] * b_sk + n[None, :] * b_sn",
        "    b = tl.load(b_ptr + b_offset, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)",
        '    acc = tl.dot(a, b, acc, input_precision="ieee")',
        "mask = (m[:, None] < M) & (n[None, :] < N)",
    ]
    offset = f"{'batch * M * N + ' if batched else ''}m[:, None] * N + n[None, :]"
    grid = f"{'Z * ' if batched else ''}triton.cdiv(M, {TILE['BM']}) * triton.cdiv(N, {TILE['BN']})"
    return draft.open(
        Kernel(
            name=f"{name}_kernel",
            thought="each program accumulates a tile of the product over blocks of the inner dimension",
            pointers=[("a_ptr", a), ("b_ptr", b), ("out_ptr", out)],
            scalars=scalars,
            blocks=list(BLOCKS),
            head=head,
            value="acc",
            offset=offset,
            mask="mask",
            channel="tl.load({p} + n, mask=n < N)[None, :]",
            tail=[f"tl.store(out_ptr + {offset}, acc, mask=mask)"],
            setup=[*dims, f"{out} = torch.empty({allocate}, device={a}.device, dtype={a}.dtype)"],
            grid=f"({grid},)",
            out=out,
        )
    )


def _sides(draft: Draft, kind: str = "any") -> tuple[int, int, int]:
    """Return M, N and K of about the drawn number of operations."""
    rng = draft.rng
    side = (budget(rng) / 2) ** (1 / 3)
    if kind == "tall":
        narrow = rng.choice((8, 16, 32, 64))
        long = large(rng, min((budget(rng) / 2 / narrow) ** 0.5, 32768), 64)
        return rng.choice(((long, narrow, long // 2 + 1), (long, long // 2 + 1, narrow), (narrow, long, long // 3 + 2)))
    if kind == "deep":
        return (
            rng.choice((128, 256, 200)),
            rng.choice((128, 256, 100)),
            large(rng, 4 * side**1.5, 256) * rng.choice((1, 4, 8, 32)),
        )
    factors = rng.choice(((1.0, 1.0, 1.0), (0.5, 2.0, 1.0), (2.0, 0.5, 1.0), (1.0, 0.5, 2.0)))
    return tuple(large(rng, max(16, side * factor), 16) for factor in factors)  # type: ignore[return-value]


MAX_SUMMANDS = 4096
"""Number of products that one program adds up. A longer sum in one fp32 accumulator would lose digits."""


def product(draft: Draft, a: str, b: str) -> Kernel:
    """Open the product of any tensor `a` with a matrix or vector `b`, variables of ``forward``.

    One text is right for every shape that ``torch.matmul(a, b)`` can have here: leading dimensions are rows, and a
    vector is a matrix of one column. Several programs share a long inner dimension, and ``forward`` adds their sums.
    """
    kernel = tile_kernel(
        draft,
        "matmul",
        "a2",
        "b2",
        dims=[
            f"a2, b2 = {a}.reshape(-1, {a}.shape[-1]), {b}.reshape({b}.shape[0], -1)",
            "M, K = a2.shape",
            "N = b2.shape[1]",
            f"split = triton.cdiv(K, {MAX_SUMMANDS})",
            f"BN = min({TILE['BN']}, max(16, triton.next_power_of_2(N)))",
        ],
        allocate=f"(split, *{a}.shape[:-1], *{b}.shape[1:])",
        loop="range(part * SPAN, min(K, part * SPAN + SPAN), BK)",
    )
    kernel.head[2:2] = ["part = pid // (tl.cdiv(M, BM) * tiles)", "pid = pid % (tl.cdiv(M, BM) * tiles)"]
    kernel.blocks[1] = ("BN", "BN")
    kernel.blocks.append(("SPAN", str(MAX_SUMMANDS)))
    kernel.offset = "(part.to(tl.int64) * M + m[:, None]) * N + n[None, :]"
    kernel.tail = [f"tl.store(out_ptr + {kernel.offset}, acc, mask=mask)"]
    kernel.grid = f"(split * triton.cdiv(M, {TILE['BM']}) * triton.cdiv(N, BN),)"
    kernel.thought = "each program accumulates a tile of the product over a part of the inner dimension"
    draft.result = f"{kernel.out}[0] if split == 1 else {kernel.out}.sum(0)"
    return kernel


_LEFT = (("A", "B"), ("A", "B"), ("A", "B"), ("x", "y"), ("a", "b"), ("mat1", "mat2"), ("left", "right"))


def matmul(draft: Draft, *, left: bool = False, right: bool = False, kind: str = "any", square: bool = False) -> None:
    """Generate a product of two matrices; `left` and `right` say which operand comes transposed.

    The kinds ``tall`` and ``deep`` and square matrices have the same text, so they share their solution.
    """
    rng = draft.rng
    a, b = rng.choice(_LEFT)
    if square:
        N = draft.size(rng.choice(("N", "n", "size", "dim")), _sides(draft)[0], small(rng))
        M = K = N
    else:
        sides = _sides(draft, kind)
        names = rng.choice((("M", "N", "K"), ("M", "N", "K"), ("m", "n", "k"), ("rows", "cols", "inner")))
        M, N, K = (draft.size(name, side, small(rng) * 2 + 1) for name, side in zip(names, sides, strict=True))
        if rng.random() < 0.2:  # two sizes: the result is square
            del draft.constants[N]
            N = M
    draft.input(a, (K, M) if left else (M, K), is_first=True, doc="Left matrix")
    draft.input(b, (N, K) if right else (K, N), doc="Right matrix")
    at = rng.choice((f"{a}.T", f"{a}.t()", f"{a}.transpose(0, 1)", f"{a}.transpose(-2, -1)")) if left else a
    bt = rng.choice((f"{b}.T", f"{b}.t()", f"{b}.transpose(0, 1)", f"{b}.transpose(-2, -1)")) if right else b
    draft.before.clear()
    draft.before += [f"{a} = {a}.T"] * left + [f"{b} = {b}.T"] * right
    draft.steps.append(
        rng.choice(
            (
                *[f"torch.matmul({at}, {bt})"] * 3,
                *(f"{at} @ {bt}", f"torch.mm({at}, {bt})", f"{at}.matmul({bt})"),
            )
        )
    )
    if not left and not right and rng.random() < 0.15:
        i, j, k = rng.choice(("ijk", "mkn", "abc", "ikj"))
        draft.steps[-1] = f'torch.einsum("{i}{j},{j}{k}->{i}{k}", {a}, {b})'
    name = "matmul" + "_at" * left + "_bt" * right + "_large_k" * (kind == "deep")
    draft.op(
        name,
        "a matrix product"
        + {
            (False, False): "",
            (True, False): " with the left matrix transposed",
            (False, True): " with the right matrix transposed",
        }.get((left, right), " of two transposed matrices"),
    )
    product(draft, a, b)


def batched(draft: Draft, *, right: bool = False) -> None:
    """Generate a product for each entry of a batch."""
    rng = draft.rng
    a, b = rng.choice(_LEFT)
    count = rng.choice((2, 4, 8, 16, 32, 64, 128))
    side = (budget(rng) / 2 / count) ** (1 / 3)
    options = (("batch_size", "m", "n", "k"), ("B", "M", "N", "K"), ("batch", "rows", "cols", "inner"))
    names = rng.choice([each for each in options if b not in each])
    B = draft.size(names[0], count, rng.choice((2, 3)))
    M, N, K = (
        draft.size(name, large(rng, max(8, side * rng.choice((0.5, 1, 2))), 8), small(rng) * 2 + 1)
        for name in names[1:]
    )
    draft.input(a, (B, M, K), is_first=True, doc="Left matrices")
    draft.input(b, (B, N, K) if right else (B, K, N), doc="Right matrices")
    draft.before.clear()
    draft.before += [f"{b} = {b}.transpose(1, 2)"] * right
    if right:
        last = rng.choice((f"{b}.transpose(1, 2)", f"{b}.transpose(-2, -1)", f"{b}.mT"))
        spelt = [f"torch.bmm({a}, {last})", f"torch.matmul({a}, {b}.transpose(1, 2))", f"{a} @ {b}.transpose(1, 2)"]
    else:  # no ``torch.matmul(a, b)``: its text does not show that there is a batch
        i, j, k, z = rng.choice(("ijkb", "mknz", "ijkn", "qdvb"))
        spelt = [*[f"torch.bmm({a}, {b})"] * 3, f"{a}.bmm({b})"]
        spelt.append(f'torch.einsum("{z}{i}{j},{z}{j}{k}->{z}{i}{k}", {a}, {b})')
    draft.steps.append(rng.choice(spelt))
    draft.op("bmm" + "_bt" * right, "a batched matrix product" + " with the right operand transposed" * right)
    tile_kernel(
        draft, "bmm", a, b, dims=[f"Z, M, K = {a}.shape", f"N = {b}.shape[2]"], allocate="(Z, M, N)", batched="ab"
    )


def tensor_matrix(draft: Draft, ndim: int) -> None:
    """Generate a tensor of three or four dimensions times a matrix: its leading dimensions are rows."""
    rng = draft.rng
    a, b = rng.choice((("A", "B"), ("x", "weight"), ("x", "proj"), ("tensor", "matrix")))
    lead = [large(rng, 64, 2) for _ in range(ndim - 1)]
    rows = 1
    for each in lead:
        rows *= each
    side = max(8.0, (budget(rng) / 2 / rows) ** 0.5)
    leading = rng.choice(
        (
            {3: ("batch_size", "seq_len"), 4: ("batch_size", "heads", "seq_len")}[ndim],
            ("b", "i", "j")[: ndim - 1],
            ("N", "M", "T")[: ndim - 1],
        )
    )
    names = [draft.size(name, size, rng.choice((2, 3, 5))) for name, size in zip(leading, lead, strict=True)]
    K, L = (
        draft.size(rng.choice(("K", "in_dim", "l")), large(rng, side, 8), small(rng) * 2),
        draft.size(rng.choice(("L", "out_dim", "k")), large(rng, side, 8), small(rng) + 8),
    )
    draft.input(a, (*names, K), is_first=True)
    draft.input(b, (K, L), doc="Matrix")
    letters = "".join(rng.sample("abceghijmnpqst", ndim - 1))
    inner, outer_ = rng.choice(("lk", "kl", "df", "vw", "uo"))
    draft.steps.append(
        rng.choice(
            (
                *[f"torch.matmul({a}, {b})"] * 2,
                f"{a} @ {b}",
                f'torch.einsum("{letters}{inner},{inner}{outer_}->{letters}{outer_}", {a}, {b})',
            )
        )
    )
    draft.op(f"matmul_{ndim}d", f"a product of a {ndim}-D tensor with a matrix")
    draft.before.clear()
    product(draft, a, b)


def matvec(draft: Draft) -> None:
    """Generate a matrix times a vector, or times a matrix of one column.

    Only ``torch.mv`` says that there is a vector; the others have the text of any product, and so its solution.
    """
    rng = draft.rng
    a, b = rng.choice((("A", "B"), ("A", "x"), ("matrix", "vector"), ("weight", "x")))
    count = elements(rng)
    K_real = large(rng, max(64, count**0.6), 16) * rng.choice((1, 1, 8, 64))
    M, K = draft.size("M", large(rng, max(8, count / K_real), 4), small(rng)), draft.size("K", K_real, small(rng) * 7)
    column = rng.random() < 0.6
    draft.input(a, (M, K), is_first=True, doc="Matrix")
    draft.input(b, (K, "1") if column else (K,), doc="Vector")
    draft.steps.append(
        rng.choice((*[f"torch.matmul({a}, {b})"] * 2, f"{a} @ {b}", f"torch.{'mm' if column else 'mv'}({a}, {b})"))
    )
    draft.op("matvec", "a matrix-vector product")
    if "torch.mv" not in draft.steps[-1]:
        draft.before.clear()
        product(draft, a, b)
        return
    draft.before.append(f"{b} = {b}.contiguous()")
    out = draft.variable()
    draft.open(
        Kernel(
            name="matvec_kernel",
            thought="each program multiplies one row with the vector and adds it up",
            pointers=[("a_ptr", a), ("b_ptr", b), ("out_ptr", out)],
            scalars=[("K", "K")],
            blocks=[("BLOCK", "2048")],
            head=[
                "row = tl.program_id(0).to(tl.int64)",
                "acc = tl.zeros((BLOCK,), tl.float32)",
                "for k0 in range(0, K, BLOCK):",
                "    k = k0 + tl.arange(0, BLOCK)",
                "    a = tl.load(a_ptr + row * K + k, mask=k < K, other=0.0)",
                "    acc += a * tl.load(b_ptr + k, mask=k < K, other=0.0)",
            ],
            value="acc",
            offset="row",
            mask="None",
            tail=["tl.store(out_ptr + row, tl.sum(acc, 0))"],
            setup=[
                f"M, K = {a}.shape",
                f"{out} = torch.empty(M, device={a}.device, dtype={a}.dtype)",
            ],
            grid="(M,)",
            out=out,
        )
    )


def diagonal(draft: Draft) -> None:
    """Generate a diagonal matrix times a matrix, or the other way round: rows or columns are scaled."""
    rng = draft.rng
    count = elements(rng)
    n = large(rng, max(8, count**0.5), 4)
    N, M = draft.size("N", n, small(rng)), draft.size("M", large(rng, max(8, count / n), 4), small(rng))
    on_left = rng.random() < 0.7
    d, b = rng.choice((("A", "B"), ("d", "x"), ("diagonal", "matrix"), ("scale", "x")))
    draft.input(d, (N,), doc="Diagonal")
    draft.input(b, (N, M) if on_left else (M, N), is_first=True, doc="Matrix")
    draft.value = b
    draft.before.append(f"{d} = {d}.contiguous()")
    draft.steps.append(
        rng.choice(
            (
                f"torch.diag({d}) @ {b}",
                f"torch.matmul(torch.diag({d}), {b})",
                f"torch.diag_embed({d}) @ {b}",
                f"torch.mm(torch.diag({d}), {b})",
                f"{d}.unsqueeze(-1) * {b}",
                f"{d}[:, None] * {b}",
                f"{d}.view(-1, 1) * {b}",
                f"{b} * {d}.unsqueeze(1)",
            )
        )
        if on_left
        else rng.choice((f"{b} @ torch.diag({d})", f"torch.matmul({b}, torch.diag({d}))", f"{b}.mm(torch.diag({d}))"))
    )
    draft.op("matmul_diagonal" if on_left else "matmul_diagonal_right", "a product with a diagonal matrix")
    kernel = flat_kernel(draft, "diag_matmul", [("d_ptr", d)])
    kernel.scalars.append(("M", f"{b}.shape[1]"))
    index = "i // M" if on_left else "i % M"
    kernel.steps.append(f"x = x * tl.load(d_ptr + {index}, mask=mask)")
    kernel.thought = "the diagonal matrix is never built: each program scales a block of elements"


def triangular(draft: Draft, upper: bool) -> None:
    """Generate a product of two triangular matrices; zero tiles are neither read nor computed."""
    rng = draft.rng
    a, b = rng.choice(_LEFT)
    n = large(rng, max(32, (budget(rng) / 2) ** (1 / 3)), 16)
    N = draft.size(rng.choice(("N", "n", "size")), n, rng.choice((19, 37, 70, 85)))
    word = "triu" if upper else "tril"
    make = f"torch.{word}(torch.rand({{shape}}))"
    draft.input(a, (N, N), make, is_first=True, doc=f"{'Upper' if upper else 'Lower'} triangular matrix")
    draft.input(b, (N, N), make, doc=f"{'Upper' if upper else 'Lower'} triangular matrix")
    draft.before.clear()
    draft.steps.append(
        rng.choice(
            (
                f"torch.{word}(torch.matmul({a}, {b}))",
                f"torch.{word}({a} @ {b})",
                f"torch.matmul({a}, {b}).{word}()",
                f"torch.{word}(torch.mm({a}, {b}))",
            )
        )
    )
    side = "upper" if upper else "lower"
    draft.op(f"matmul_{side}", f"a product of {side} triangular matrices")
    kernel = tile_kernel(
        draft,
        f"{word}_matmul",
        a,
        b,
        dims=[f"M, K = {a}.shape", f"N = {b}.shape[1]"],
        allocate="(M, N)",
        loop="range(pid // tiles * BM // BK * BK, min(K, pid % tiles * BN + BN), BK)"
        if upper
        else "range(pid % tiles * BN // BK * BK, min(K, pid // tiles * BM + BM), BK)",
    )
    kernel.steps.append(f"acc = tl.where(m[:, None] {'<=' if upper else '>='} n[None, :], acc, 0.0)")
    kernel.thought = "each program skips the blocks that are zero in one of the matrices"


def symmetric(draft: Draft) -> None:
    """Generate a product of two symmetric matrices."""
    rng = draft.rng
    a, b = rng.choice(_LEFT)
    N = draft.size(
        rng.choice(("N", "n", "size")), large(rng, max(32, (budget(rng) / 2) ** (1 / 3)), 16), small(rng) + 8
    )
    for name in (a, b):
        draft.input(name, (N, N), "torch.rand({shape})", is_first=name == a, doc="Symmetric matrix")
    draft.before.clear()
    if rng.random() < 0.6:  # the inputs are symmetric already
        after = rng.choice(("({x} + {x}.T) / 2", "0.5 * ({x} + {x}.T)", "{x} + {x}.t()", "{x} @ {x}.T"))
        for each in draft.inputs:
            each.after = after
        draft.steps.append(rng.choice((*[f"torch.matmul({a}, {b})"] * 3, f"{a} @ {b}", f"torch.mm({a}, {b})")))
        draft.op("matmul_symmetric", "a product of symmetric matrices")
    else:
        draft.steps.append(rng.choice((f"torch.matmul(({a} + {a}.T) / 2, {b})", f"(0.5 * ({a} + {a}.t())) @ {b}")))
        draft.op("matmul_symmetric", "a product with a matrix made symmetric")
        draft.before.append(f"{a} = ({a} + {a}.T) / 2")
    product(draft, a, b)


def outer(draft: Draft) -> None:
    """Generate the outer product of two vectors."""
    rng = draft.rng
    count = elements(rng)
    n = large(rng, max(8, count**0.5), 4)
    a, b = rng.choice((("a", "b"), ("x", "y"), ("u", "w")))
    N, M = draft.size("N", n, small(rng)), draft.size("M", large(rng, max(8, count / n), 4), small(rng))
    draft.input(a, (N,), is_first=True, doc="Vector")
    draft.input(b, (M,), doc="Vector")
    draft.before.append(f"{b} = {b}.contiguous()")
    draft.steps.append(
        rng.choice((f"torch.outer({a}, {b})", f"{a}[:, None] * {b}[None, :]", f"{a}.unsqueeze(1) * {b}.unsqueeze(0)"))
    )
    draft.op("outer", "an outer product")

    kernel = flat_kernel(draft, "outer", [("b_ptr", b)])
    kernel.head[-1] = "x = tl.load(x_ptr + i // M, mask=mask) * tl.load(b_ptr + i % M, mask=mask)"
    kernel.setup = [
        "M = " + f"{b}.numel()",
        f"n = {a}.numel() * M",
        f"{kernel.out} = torch.empty(({a}.numel(), M), device={a}.device, dtype={a}.dtype)",
    ]
    kernel.scalars.append(("M", "M"))
    kernel.thought = "each program computes a block of the products"
    kernel.is_flat = False


def matrix_scalar(draft: Draft) -> None:
    """Generate a matrix times a number that ``forward`` is given."""
    rng = draft.rng
    dims = shape(draft, elements(rng), 2)
    a = rng.choice(("A", "x", "matrix"))
    s = rng.choice(("s", "scalar", "alpha", "factor"))
    draft.input(a, dims, is_first=True, doc="Matrix")
    draft.input(s, (), rng.choice(("3.14", "0.5", "2.5", "-1.5")), doc="Scalar")
    draft.steps.append(rng.choice((f"{a} * {s}", f"{s} * {a}", f"torch.mul({a}, {s})")))
    draft.op("matrix_scalar", "a product of a matrix with a number")
    kernel = flat_kernel(draft, "scale")
    kernel.scalars.append(("s", s))
    kernel.steps.append("x = x * s")


def linear(draft: Draft) -> str:
    """Generate a linear layer, the start of a chain; returns the name of its number of outputs."""
    rng = draft.rng
    batch = large(rng, 2048, 8)
    side = (budget(rng) / 2 / batch) ** 0.5
    usual = ("in_features", "out_features")
    names = rng.choice((usual, usual, ("input_size", "hidden_size"), ("in_dim", "out_dim")))
    groups = rng.choice((2, 3))
    rows = draft.size("batch_size", batch, rng.choice((5, 6, 7, 9)))
    inner = draft.size(names[0], large(rng, max(16, side), 16), small(rng) * 2 + 1)
    wide = large(rng, max(16, side * rng.choice((0.5, 1, 2))), 16)
    outer_size = draft.size(names[1], max(16, wide // 16 * 16), groups * rng.choice((4, 6, 8, 12)))
    draft.argument(inner, draft.constants[inner], doc="Size of each input row")
    draft.argument(outer_size, draft.constants[outer_size], doc="Size of each output row")
    has_bias = rng.random() < 0.85
    layer = draft.free(rng.choice(("linear", "linear", "gemm", "matmul", "fc", "proj")))
    in_parameter = not has_bias and rng.random() < 0.5
    if in_parameter:
        draft.line(f"self.{layer} = nn.Parameter(torch.randn({outer_size}, {inner}))")
    else:
        draft.line(f"self.{layer} = nn.Linear({inner}, {outer_size}{'' if has_bias else ', bias=False'})")
    draft.input("x", (rows, inner), is_first=True)
    draft.before.clear()
    draft.steps.append(
        rng.choice(
            (f"torch.matmul({{x}}, self.{layer}.T)", f"{{x}} @ self.{layer}.t()", f"F.linear({{x}}, self.{layer})")
        )
        if in_parameter
        else f"self.{layer}({{x}})"
    )
    draft.op(
        "linear" if has_bias else "linear_no_bias",
        rng.choice(("a linear layer", "a matrix product with learnt weights", "a fully connected layer")),
    )
    kernel = tile_kernel(
        draft,
        "linear",
        "x",
        "w",
        dims=[f"w = self.{layer}{'' if in_parameter else '.weight'}.T", "M, K = x.shape", "N = w.shape[1]"],
        allocate="(M, N)",
    )
    if has_bias:
        pointer = draft.free("bias_ptr")
        kernel.pointers.append((pointer, f"self.{layer}.bias"))
        kernel.steps.append(f"acc += tl.load({pointer} + n, mask=n < N)[None, :]")
    draft.shape = draft.both(lambda side: (draft.constants[rows][side], draft.constants[outer_size][side]))
    return outer_size
