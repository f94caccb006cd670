"""Losses, attention, embeddings and other indexing."""

from __future__ import annotations

from kernel_coder.tasks.generator.repository.draft import Draft, Kernel
from kernel_coder.tasks.generator.repository.elementwise import apply, broadcast, flat_kernel, narrower
from kernel_coder.tasks.generator.repository.products import tile_kernel
from kernel_coder.tasks.generator.repository.rows import _online, rescale, row_kernel
from kernel_coder.tasks.generator.repository.sizes import budget, elements, large, shape, small
from kernel_coder.tasks.generator.repository.whole import partial

PAIRS = (("predictions", "targets"), ("pred", "target"), ("input", "target"), ("x", "y"), ("outputs", "labels"))
LOSSES = {
    # name: torch spellings on {x} and {y}, layers, term in Triton, phrase, maker of targets, extra lines
    "mse_loss": (
        ("torch.mean(({x} - {y}) ** 2)", "F.mse_loss({x}, {y})", "(({x} - {y}) ** 2).mean()"),
        "MSELoss()",
        "d * d",
        ["d = x - y"],
        "the mean squared error",
    ),
    "l1_loss": (
        ("torch.mean(torch.abs({x} - {y}))", "F.l1_loss({x}, {y})"),
        "L1Loss()",
        "tl.abs(x - y)",
        [],
        "the mean absolute error",
    ),
    "smooth_l1_loss": (
        ("F.smooth_l1_loss({x}, {y})", "torch.nn.functional.smooth_l1_loss({x}, {y})"),
        "SmoothL1Loss()",
        "tl.where(d < 1.0, 0.5 * d * d, d - 0.5)",
        ["d = tl.abs(x - y)"],
        "the smooth L1 loss",
    ),
    "huber_loss": (
        ("F.huber_loss({x}, {y}, delta={a})",),
        "HuberLoss(delta={a})",
        "tl.where(d < {a}, 0.5 * d * d, {a} * (d - 0.5 * {a}))",
        ["d = tl.abs(x - y)"],
        "the Huber loss",
    ),
    "bce_with_logits": (
        ("F.binary_cross_entropy_with_logits({x}, {y})",),
        "BCEWithLogitsLoss()",
        "tl.maximum(x, 0.0) - x * y + tl.log(1.0 + tl.exp(-tl.abs(x)))",
        [],
        "the binary cross entropy with logits",
    ),
    "hinge_loss": (
        (
            "torch.mean(torch.clamp(1 - {x} * {y}, min=0))",
            "F.relu(1 - {x} * {y}).mean()",
            "torch.clamp(1.0 - {x} * {y}, min=0.0).mean()",
        ),
        "",
        "tl.maximum(1.0 - x * y, 0.0)",
        [],
        "the hinge loss",
    ),
    "log_cosh_loss": (
        ("torch.mean(torch.log(torch.cosh({x} - {y})))",),
        "",
        "d + tl.log(1.0 + tl.exp(-2.0 * d)) - 0.6931471805599453",
        ["d = tl.abs(x - y)"],
        "the log-cosh loss",
    ),
    "squared_hinge_loss": (
        ("torch.mean(torch.clamp(1 - {x} * {y}, min=0) ** 2)",),
        "",
        "h * h",
        ["h = tl.maximum(1.0 - x * y, 0.0)"],
        "the squared hinge loss",
    ),
    "kl_div": (
        (
            "F.kl_div(torch.log({x}), {y}, reduction='batchmean')",
            "torch.nn.functional.kl_div({x}.log(), {y}, reduction='batchmean')",
        ),
        "",
        "tl.where(y > 0.0, y * (tl.log(y) - tl.log(x)), 0.0)",
        [],
        "the Kullback-Leibler divergence",
    ),
    "poisson_nll": (
        ("F.poisson_nll_loss({x}, {y})",),
        "PoissonNLLLoss()",
        "tl.exp(x) - y * x",
        [],
        "the Poisson negative log-likelihood",
    ),
}


def loss(draft: Draft, name: str) -> None:
    """Generate a loss of two tensors, as the mean of a term; the targets may have to be broadcast."""
    rng = draft.rng
    spellings, layer, term, lines, phrase = LOSSES[name]
    x, y = rng.choice(PAIRS)
    dims = shape(draft, elements(rng) / 2, rng.choice((1, 2, 2, 3)) if name != "kl_div" else 2)
    make = {
        "hinge_loss": "torch.randint(0, 2, ({shape})).float() * 2 - 1",
        "bce_with_logits": "torch.rand({shape})",
        "kl_div": "torch.rand({shape}).softmax(dim=-1)",
        "poisson_nll": "torch.rand({shape})",
    }
    make["squared_hinge_loss"] = make["hinge_loss"]
    draft.input(
        x, dims, "torch.rand({shape}).softmax(dim=-1)" if name == "kl_div" else "", "Predictions", is_first=True
    )
    spelling = rng.choice(spellings)
    in_layer = layer and rng.random() < 0.4
    others = dims
    # PyTorch's own losses warn of unequal shapes, or refuse them
    is_own = in_layer or "loss(" in spelling or "kl_div(" in spelling or "logits(" in spelling
    if not is_own and len(dims) > 1 and rng.random() < (0.5 if "hinge" in name else 0.3):
        others = narrower(rng, dims)
        if len(dims) == 2 and rng.random() < 0.5:  # (B,) with (B, D), where D is B
            side = int(max(4, draft.constants[dims[0]][0] * draft.constants[dims[1]][0]) ** 0.5)
            draft.constants[dims[0]] = draft.constants[dims[1]] = (side, draft.constants[dims[0]][1])
            others = dims[:1]
    maker = make.get(name, "")
    if len(others) == 1:
        maker = maker.replace("({shape}))", "({shape},))")
    draft.input(y, others, maker, "Targets")
    draft.before[0] = broadcast(x, y)
    words = "1.0"
    scalar = ""
    if "{a}" in term:
        value = rng.choice((0.5, 1.0, 2.0))
        words = repr(value)
        if rng.random() < 0.6:
            draft.argument("delta", (value, value), "float", 1.0, "Where the loss becomes linear")
            draft.line("self.delta = delta")
            words, scalar = "self.delta", "delta"
    if in_layer:
        attribute = draft.free(rng.choice(("loss_fn", "criterion", "loss")))
        draft.line(f"self.{attribute} = nn.{layer.replace('{a}', words.removeprefix('self.'))}", is_kept=False)
        draft.steps.append(f"self.{attribute}({x}, {y})")
    else:
        draft.steps.append(spelling.replace("{x}", x).replace("{y}", y).replace("{a}", words))
    draft.op(name, phrase)
    draft.value = x
    kernel = partial(draft, x, term.replace("{a}", scalar or words), [("y_ptr", y)])
    kernel.head += ["y = tl.load(y_ptr + i, mask=mask, other=0.0)", *lines]
    if scalar:
        kernel.scalars.append(("delta", "self.delta"))
    kernel.thought = "each program sums the loss of a block, and the partial sums are averaged at the end"
    draft.result = f"{kernel.out}.sum() / {f'{x}.shape[0]' if name == 'kl_div' else 'n'}"


def cross_entropy(draft: Draft) -> None:
    """Generate cross entropy of logits with classes as targets."""
    rng = draft.rng
    x, y = rng.choice(PAIRS)
    classes = large(rng, rng.choice((64, 1024, 8192, 50000)), 5)
    B, C = (
        draft.size("batch_size", large(rng, max(4, elements(rng) / classes), 2), small(rng)),
        draft.size("num_classes", classes, small(rng) * 3),
    )
    draft.input(
        x, (B, C), "torch.randn({shape})" if rng.random() < 0.5 else "torch.rand({shape})", "Logits", is_first=True
    )
    draft.input(y, (B,), f"torch.randint(0, {C}, ({{shape}},))", "Classes")
    draft.before.append(f"{y} = {y}.contiguous()")
    if rng.random() < 0.5:
        attribute = draft.free(rng.choice(("loss_fn", "criterion")))
        draft.line(f"self.{attribute} = nn.CrossEntropyLoss()", is_kept=False)
        draft.steps.append(f"self.{attribute}({x}, {y})")
    else:
        draft.steps.append(
            rng.choice(
                (
                    f"F.cross_entropy({x}, {y})",
                    f"F.nll_loss(F.log_softmax({x}, dim=1), {y})",
                    f"F.nll_loss({x}.log_softmax(dim=-1), {y})",
                )
            )
        )
    draft.op("cross_entropy", "the cross entropy")
    kernel = row_kernel(
        draft,
        "cross_entropy",
        "each program finds the log-sum-exp of its rows in one pass and subtracts the target's logit",
        [
            *_online([]),
            "target = tl.load(t_ptr + o * I + i, mask=i < I, other=0)",
            "y = top + tl.log(total) - tl.load(x_ptr + (o * R + target) * I + i, mask=i < I, other=0.0)",
        ],
        dim="1",
        out="torch.empty({x}.shape[0], device={x}.device, dtype={x}.dtype)",
        reduced=True,
        value="y",
        tail=["tl.store(out_ptr + o * I + i, y, mask=i < I)"],
    )
    kernel.pointers.append(("t_ptr", y))
    draft.result = f"{kernel.out}.mean()"


def triplet(draft: Draft) -> None:
    """Generate the triplet margin loss."""
    rng = draft.rng
    dims = shape(draft, elements(rng) / 3, 2)
    names = rng.choice((("anchor", "positive", "negative"), ("a", "p", "n")))
    for at, name in enumerate(names):
        draft.input(name, dims, doc=("Anchors", "Positive samples", "Negative samples")[at], is_first=at == 0)
        if at:
            draft.before.append(f"{name} = {name}.contiguous()")
    a, p, n = names
    margin = rng.choice((1.0, 1.0, 0.5, 0.2))
    draft.argument("margin", (margin, margin), "float", 1.0, "Margin between the distances")
    if rng.random() < 0.5:
        draft.line("self.loss = nn.TripletMarginLoss(margin=margin)", is_kept=False)
        draft.line("self.margin = margin", is_shown=False)
        draft.steps.append(f"self.loss({a}, {p}, {n})")
    else:
        draft.line("self.margin = margin")
        draft.steps.append(f"F.triplet_margin_loss({a}, {p}, {n}, margin=self.margin)")
    draft.op("triplet_loss", "the triplet margin loss")
    _row_loss(
        draft,
        "triplet",
        [a, p, n],
        "D",
        ["d = x - y + 1e-6", "s += d * d", "d = x - z + 1e-6", "q += d * d"],
        "tl.maximum(tl.sqrt(tl.sum(s, 0)) - tl.sqrt(tl.sum(q, 0)) + margin, 0.0)",
        [("margin", "self.margin")],
    )
    draft.result = f"{draft.value}.mean()"


def cosine(draft: Draft, *, is_loss: bool) -> None:
    """Generate cosine similarity of rows, or its mean distance from one."""
    rng = draft.rng
    dims = shape(draft, elements(rng) / 2, 2)
    x, y = rng.choice(PAIRS)
    draft.input(x, dims, is_first=True)
    draft.input(y, dims, doc="Second tensor")
    draft.before.append(f"{y} = {y}.contiguous()")
    similarity = f"F.cosine_similarity({x}, {y}, dim=1)"
    draft.steps.append(
        rng.choice((f"torch.mean(1 - {similarity})", f"(1.0 - {similarity}).mean()")) if is_loss else similarity
    )
    draft.op(
        "cosine_loss" if is_loss else "cosine_similarity", "the cosine distance" if is_loss else "the cosine similarity"
    )
    _row_loss(
        draft,
        "cosine",
        [x, y],
        "D",
        ["d += x * y", "s += x * x", "q += y * y"],
        "tl.sum(d, 0) / (tl.maximum(tl.sqrt(tl.sum(s, 0)), 1e-8) * tl.maximum(tl.sqrt(tl.sum(q, 0)), 1e-8))",
        [],
    )
    if is_loss:
        draft.result = f"1.0 - {draft.value}.mean()"


def _row_loss(
    draft: Draft,
    name: str,
    tensors: list[str],
    extent: str,
    lines: list[str],
    value: str,
    scalars: list[tuple[str, str]],
) -> None:
    """Opens a kernel with one program for each row, which reads several tensors along it."""
    out = draft.variable()
    letters = ("x", "y", "z")[: len(tensors)]
    sums = [word for word in ("d", "s", "q") if any(line.startswith(f"{word} +=") for line in lines)]
    first = tensors[0]
    draft.open(
        Kernel(
            name=f"{name}_kernel",
            thought="each program reads one row of every tensor and stores the row's result",
            pointers=[
                *[(f"{letter}_ptr", tensor) for letter, tensor in zip(letters, tensors, strict=True)],
                ("out_ptr", out),
            ],
            scalars=[(extent, extent), *scalars],
            blocks=[("BLOCK", "1024")],
            head=[
                "row = tl.program_id(0).to(tl.int64)",
                *[f"{word} = tl.zeros((BLOCK,), tl.float32)" for word in sums],
                f"for k0 in range(0, {extent}, BLOCK):",
                "    k = k0 + tl.arange(0, BLOCK)",
                f"    mask = k < {extent}",
                *[
                    f"    {letter} = tl.load({letter}_ptr + row * {extent} + k, mask=mask, other=0.0)"
                    for letter in letters
                ],
                *[
                    f"    {line if '1e-6' not in line else line.replace('d = ', 'd = tl.where(mask, ') + ', 0.0)'}"
                    for line in lines
                ],
            ],
            value="y",
            offset="row",
            mask="None",
            tail=[f"tl.store(out_ptr + row, {value})"],
            setup=[
                f"B, {extent} = {first}.shape",
                f"{out} = torch.empty(B, device={first}.device, dtype={first}.dtype)",
            ],
            grid="(B,)",
            out=out,
        )
    )


def attention(draft: Draft, *, causal: bool = False) -> None:
    """Generate scaled dot-product attention in three kernels, which is right for any head size."""
    rng = draft.rng
    q, k, v = rng.choice((("Q", "K", "V"), ("q", "k", "v"), ("query", "key", "value")))
    names = rng.choice(
        (
            ("batch_size", "num_heads", "seq_len", "head_dim"),
            ("B", "H", "T", "D"),
            ("batch_size", "n_heads", "sequence_length", "embedding_dimension"),
        )
    )
    batch, heads = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 4, 8, 16))
    head_dim = rng.choice((32, 64, 64, 128, 256))
    length = large(rng, max(16, (budget(rng) / 4 / batch / heads / head_dim) ** 0.5), 16)
    dims = tuple(
        draft.size(name, a, b)
        for name, a, b in zip(
            names,
            (batch, heads, min(length, 4096), head_dim),
            (2, 2, small(rng) + 3, rng.choice((8, 12, 20))),
            strict=True,
        )
    )
    for at, name in enumerate((q, k, v)):
        draft.input(name, dims, doc=("Queries", "Keys", "Values")[at], is_first=at == 0)
    draft.before.clear()
    manual = rng.random() < 0.4 and not causal
    if manual:
        draft.steps.append(
            rng.choice(
                (
                    f"torch.softmax(torch.matmul({q}, {k}.transpose(-2, -1)) / math.sqrt({q}.size(-1)), dim=-1) @ {v}",
                    f"torch.matmul(F.softmax({q} @ {k}.transpose(-2, -1) / ({q}.shape[-1] ** 0.5), dim=-1), {v})",
                )
            )
        )
    else:
        draft.steps.append(
            rng.choice(
                (
                    f"F.scaled_dot_product_attention({q}, {k}, {v}{', is_causal=True' if causal else ''})",
                    f"torch.nn.functional.scaled_dot_product_attention({q}, {k}, {v}{', is_causal=True' * causal})",
                )
            )
        )
    draft.op(
        "causal_attention" if causal else "attention", "causal attention" if causal else "scaled dot-product attention"
    )
    draft.before += [f"B, H = {q}.shape[:2]", f"q, k, v = (t.reshape(-1, *t.shape[2:]) for t in ({q}, {k}, {v}))"]
    kernel = tile_kernel(
        draft,
        "scores",
        "q",
        "kt",
        dims=["kt = k.transpose(1, 2)", "Z, M, K = q.shape", "N = kt.shape[2]"],
        allocate="(Z, M, N)",
        batched="ab",
    )
    kernel.scalars.append(("scale", "K ** -0.5"))
    kernel.steps.append("acc = acc * scale")
    if causal:
        kernel.steps.append('acc = tl.where(m[:, None] >= n[None, :], acc, float("-inf"))')
    kernel.thought = "each program computes a tile of the scores"
    rescale(draft, "softmax", "-1").thought = "a softmax over each row of scores"
    scores = draft.value
    last = tile_kernel(
        draft,
        "weighted",
        scores,
        "v",
        dims=[f"Z, M, K = {scores}.shape", "N = v.shape[2]"],
        allocate="(Z, M, N)",
        batched="ab",
    )
    last.thought = "the product of the weights with the values"
    draft.result = f"{last.out}.view(B, H, M, N)"


def embedding(draft: Draft) -> None:
    """Generate nn.Embedding: rows of a table."""
    rng = draft.rng
    names = rng.choice((("num_embeddings", "embedding_dim"), ("vocab_size", "d_model"), ("vocab_size", "hidden_size")))
    width = large(rng, 2048, 16)
    rows = large(rng, min(50000, 2.5e8 / width), 16)
    V, D = draft.size(names[0], rows, 11), draft.size(names[1], width, small(rng))
    for name in (V, D):
        draft.argument(name, draft.constants[name], doc="Number of rows of the table" if name == V else "Size of a row")
    layer = draft.free(rng.choice(("embedding", "embed", "emb")))
    draft.line(f"self.{layer} = nn.Embedding({V}, {D})")
    count = max(2, elements(rng) / width)
    dims = (draft.size("batch_size", large(rng, count**0.5, 1), 3), draft.size("seq_len", large(rng, count**0.5, 2), 5))
    x = draft.input(
        rng.choice(("x", "ids", "tokens", "indices")),
        dims,
        f"torch.randint(0, {V}, ({{shape}}))",
        "Indices",
        is_first=True,
    )
    draft.steps.append(rng.choice((f"self.{layer}({{x}})", f"F.embedding({{x}}, self.{layer}.weight)")))
    draft.op("embedding", "an embedding lookup")
    kernel = flat_kernel(draft, "embedding", [("w_ptr", f"self.{layer}.weight")])
    kernel.is_flat = False
    kernel.head[-1:] = [
        "row = tl.load(x_ptr + i // D, mask=mask, other=0)",
        "x = tl.load(w_ptr + row * D + i % D, mask=mask)",
    ]
    kernel.scalars.append(("D", "D"))
    kernel.setup = [
        f"D = self.{layer}.embedding_dim",
        f"{kernel.out} = torch.empty((*{x}.shape, D), device={x}.device, dtype=self.{layer}.weight.dtype)",
        f"n = {kernel.out}.numel()",
    ]
    kernel.thought = "each program copies a block of the output from the rows that the indices name"
    if rng.random() < 0.3:
        apply(draft, "scale")


def glu(draft: Draft) -> None:
    """Generate a gated linear unit: one half of the last dimension times a function of the other."""
    rng = draft.rng
    dims = shape(draft, elements(rng), rng.choice((2, 3)))
    last = draft.constants[dims[-1]]
    draft.constants[dims[-1]] = (last[0] // 2 * 2 + 2 * (last[0] < 2), last[1] // 2 * 2 + 2)
    draft.input("x", dims, is_first=True)
    gates = {
        "glu": ("tl.sigmoid(b)", "torch.sigmoid({b})"),
        "swiglu": ("(b * tl.sigmoid(b))", "F.silu({b})"),
        "reglu": ("tl.maximum(b, 0.0)", "F.relu({b})"),
    }
    name = rng.choice(tuple(gates))
    triton, torch_ = gates[name]
    if name == "glu" and rng.random() < 0.5:
        draft.steps.append("F.glu({x}, dim=-1)")
    else:
        a, b = rng.choice((("a", "b"), ("value", "gate"), ("h", "g")))
        draft.steps.append(f"{a}, {b} = {{x}}.chunk(2, dim=-1)\n{a} * {torch_.replace('{b}', b)}")
    draft.op(name, "a gated linear unit")
    kernel = flat_kernel(draft, name)
    kernel.is_flat = False
    kernel.scalars.append(("H", "H"))
    kernel.head[-1:] = [
        "j = i // H * 2 * H + i % H",
        "a = tl.load(x_ptr + j, mask=mask)",
        "b = tl.load(x_ptr + j + H, mask=mask)",
        f"x = a * {triton}",
    ]
    kernel.setup = [
        "H = x.shape[-1] // 2",
        f"{kernel.out} = torch.empty((*x.shape[:-1], H), device=x.device, dtype=x.dtype)",
        f"n = {kernel.out}.numel()",
    ]
    kernel.thought = "each program reads both halves of a block and stores their product"
