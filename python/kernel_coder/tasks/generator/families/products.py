"""Families around matrix products: linear layers, matmul, batched matmul, attention."""

from __future__ import annotations

from kernel_coder.tasks.generator.layouts import NEG_INF, Layout, Tape
from kernel_coder.tasks.generator.pointwise import ACTIVATIONS, ARITHMETIC, BY_NAME, Pointwise
from kernel_coder.tasks.generator.rowwise import REDUCTIONS, SHAPED, along
from kernel_coder.tasks.generator.sketch import Sketch

EPILOGUE: tuple[Pointwise, ...] = (*ACTIVATIONS, *ARITHMETIC)
MIXING_OPS = tuple(BY_NAME[name] for name in ("add", "sub", "mul", "maximum", "minimum", "add_scaled"))
_SIZES = (16, 20, 24, 32, 33, 40, 48, 50, 60, 64)
_ROWS = (5, 8, 10, 16, 20, 24, 30, 32)


class Tile(Layout):
    """A tile of a product, accumulated over blocks of the inner dimension; whole rows of it if `full`."""

    var = "acc"
    axis = 1
    keep = "[:, None]"
    extent = "N"

    def __init__(self, sketch: Sketch, a: str, b: str, *, batched: bool = False, full: bool = False) -> None:
        """`a` and `b` are the offsets of the operands' tiles, in terms of rows, cols and ks."""
        super().__init__(sketch)
        self.batched, self.full, self.pads = batched, full, full
        kernel = self.kernel
        columns = "tl.arange(0, BLOCK_N)" if full else "tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)"
        kernel.head = [
            *[f"batch = tl.program_id({1 if full else 2})"] * batched,
            "rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
            f"cols = {columns}",
            "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
            "for k in range(0, K, BLOCK_K):",
            "    ks = k + tl.arange(0, BLOCK_K)",
            "    a_mask = (rows[:, None] < M) & (ks[None, :] < K)",
            "    b_mask = (ks[:, None] < K) & (cols[None, :] < N)",
            f"    a = tl.load(a_ptr + {a}, mask=a_mask, other=0.0)",
            f"    b = tl.load(b_ptr + {b}, mask=b_mask, other=0.0)",
            '    acc += tl.dot(a, b, input_precision="ieee")',
            "mask = (rows[:, None] < M) & (cols[None, :] < N)",
        ]
        for name in ("M", "N", "K"):
            kernel.scalar(name)

    def index(self, kind: str) -> tuple[str, str | None]:
        if kind == "last":
            return "cols[None, :]", "cols[None, :] < N"
        if kind == "lead":
            return "rows[:, None]", "rows[:, None] < M"
        return "batch * M * N + " * self.batched + "rows[:, None] * N + cols[None, :]", "mask"

    def store_reduced(self, value: str) -> None:
        self.kernel.results["out_ptr"] = "out"
        self.kernel.steps.append(f"tl.store(out_ptr + {'batch * M + ' * self.batched}rows, {value}, mask=rows < M)")

    def launch(self) -> None:
        self._start("(batch, M, N)" if self.batched else "(M, N)")

    def launch_reduced(self, keepdim: bool, dtype: str = "x.dtype") -> None:
        self._start("M")

    def _start(self, shape: str) -> None:
        kernel = self.kernel
        kernel.block("BLOCK_M", "32")
        kernel.block("BLOCK_N", "max(16, triton.next_power_of_2(N))" if self.full else "32")
        kernel.block("BLOCK_K", "32")
        grid = ["triton.cdiv(M, 32)", *["triton.cdiv(N, 32)"] * (not self.full), *["batch"] * self.batched]
        comma = "," if len(grid) == 1 else ""
        out = f"out = torch.empty({shape}, device=x.device, dtype=x.dtype)"
        self.sketch.forward += [out, *kernel.launch(f"({', '.join(grid)}{comma})")]


_A = "rows[:, None] * K + ks[None, :]"
_A_T = "ks[None, :] * M + rows[:, None]"
_B = "ks[:, None] * N + cols[None, :]"
_B_T = "cols[None, :] * K + ks[:, None]"


def linear(s: Sketch) -> None:
    """Generate a linear layer with what follows it in the same kernel."""
    rng = s.rng
    rows = [s.size("batch_size", rng.choice(_ROWS))]
    features = [s.size("in_features", rng.choice(_SIZES)), s.size("out_features", rng.choice(_SIZES))]
    s.tensor("x", (*rows, features[0]))
    for name in features:
        s.argument(name)
    has_bias = rng.random() < 0.75
    s.state.append(f"self.linear = nn.Linear(in_features, out_features{', bias=False' * (not has_bias)})")
    along_row = s.level > 1 and rng.random() < 0.4
    layout = Tile(s, _A, _B_T, full=along_row)
    layout.kernel.pointer("a", "x")
    layout.kernel.pointer("b", "self.linear.weight")
    s.step("self.linear(x)")
    s.ops.append("linear" if has_bias else "linear_no_bias")
    tape = Tape(layout, (-1.5, 1.5))
    tape.error = 2e-7
    tape.raw = False
    if has_bias:
        tape.operand("bias", "self.linear.bias", "last")
        tape.say("{x} += bias")
    _epilogue(tape, rows + features[1:], s.level + 1, along_row)
    s.contiguous()
    s.forward += ["M, K = x.shape", "N = self.linear.out_features"]
    _launch(tape)


def matmul(s: Sketch) -> None:
    """Generate a product of two matrices, either of them transposed, with what follows it."""
    rng = s.rng
    sizes = [s.size("M", rng.choice(_ROWS)), s.size("K", rng.choice(_SIZES)), s.size("N", rng.choice(_SIZES))]
    turned_a, turned_b = rng.choice(((False, False), (False, False), (True, False), (False, True), (True, True)))
    s.tensor("x", (sizes[1], sizes[0]) if turned_a else (sizes[0], sizes[1]))
    s.tensor("y", (sizes[2], sizes[1]) if turned_b else (sizes[1], sizes[2]))
    along_row = s.level > 1 and rng.random() < 0.3
    layout = Tile(s, _A_T if turned_a else _A, _B_T if turned_b else _B, full=along_row)
    layout.kernel.pointer("a", "x")
    layout.kernel.pointer("b", "y")
    left, right = ("x.T" if turned_a else "x"), ("y.T" if turned_b else "y")
    s.step(rng.choice((f"torch.matmul({left}, {right})", f"{left} @ {right}", f"torch.mm({left}, {right})")))
    s.ops.append("matmul" + "_at" * turned_a + "_bt" * turned_b)
    tape = Tape(layout, (-8.0, 8.0))
    tape.error = 2e-7
    tape.raw = False
    _epilogue(tape, [sizes[0], sizes[2]], s.level + 1, along_row)
    s.contiguous()
    s.forward += [f"{'K, M' if turned_a else 'M, K'} = x.shape", f"N = y.shape[{0 if turned_b else 1}]"]
    _launch(tape)


def bmm(s: Sketch) -> None:
    """Generate a product for each entry of a batch, the second operand transposed or not."""
    rng = s.rng
    batch = s.size("batch_size", 2)
    sizes = [s.size("M", rng.choice(_ROWS)), s.size("K", rng.choice(_SIZES[:8])), s.size("N", rng.choice(_SIZES[:4]))]
    turned = rng.random() < 0.4
    s.tensor("x", (batch, sizes[0], sizes[1]))
    s.tensor("y", (batch, sizes[2], sizes[1]) if turned else (batch, sizes[1], sizes[2]))
    along_row = s.level > 1 and rng.random() < 0.3
    layout = Tile(s, f"batch * M * K + {_A}", f"batch * K * N + {_B_T if turned else _B}", batched=True, full=along_row)
    layout.kernel.pointer("a", "x")
    layout.kernel.pointer("b", "y")
    right = "y.transpose(1, 2)" if turned else "y"
    s.step(rng.choice((f"torch.bmm(x, {right})", f"torch.matmul(x, {right})", f"x @ {right}")))
    s.ops.append("bmm" + "_bt" * turned)
    tape = Tape(layout, (-8.0, 8.0))
    tape.error = 2e-7
    tape.raw = False
    _epilogue(tape, [batch, sizes[0], sizes[2]], s.level + 1, along_row, reduces=False)
    s.contiguous()
    s.forward += ["batch, M, K = x.shape", f"N = y.shape[{1 if turned else 2}]"]
    _launch(tape)


def _epilogue(tape: Tape, shape: list[str], count: int, along_row: bool, *, reduces: bool = True) -> None:
    """Append operations on the finished tile: on single elements, with an operand, and at the higher levels on a whole
    row."""
    s, rng = tape.sketch, tape.rng
    plan = ["chain"] * max(count - 1, 0)
    if along_row:
        plan.append("row")
    else:
        plan.append("operand" if s.level and rng.random() < 0.6 else "chain")
    rng.shuffle(plan)
    for place, what in enumerate(plan):
        if what == "chain":
            tape.chain(1, EPILOGUE)
        elif what == "operand":
            if rng.random() < 0.5:
                s.tensor("residual", shape)
                tape.combine(MIXING_OPS, "residual", label="_residual")
            else:
                weight = s.parameter("weight", shape[-1:])
                tape.combine(MIXING_OPS, "weight", passed=weight, kind="last", label="_row")
        elif reduces and place == len(plan) - 1 and rng.random() < 0.6:
            along(tape, REDUCTIONS[rng.choice(("sum", "mean", "max", "logsumexp", "l2_norm"))])
            tape.reduced = True
        else:
            names = ("softmax", "log_softmax", "layer_norm", "rms_norm", "l2_normalize", "center")
            along(tape, SHAPED[rng.choice(names)])


def _launch(tape: Tape) -> None:
    layout, s = tape.layout, tape.sketch
    if tape.reduced:
        layout.store_reduced(layout.var)
    else:
        layout.store(layout.var)
    s.name_kernel(tape.kernel)
    if tape.reduced:
        layout.launch_reduced(False)
    else:
        layout.launch()


class Attended(Layout):
    """The output tile of attention: some queries, all dimensions of their values."""

    var = "acc"
    axis = 1
    keep = "[:, None]"
    extent = "D"

    def index(self, kind: str) -> tuple[str, str | None]:
        return "batch * S * D + rows[:, None] * D + dims[None, :]", "q_mask"


def attention(s: Sketch) -> None:
    """Generate scaled dot-product attention over short sequences: a program holds all keys of its queries."""
    rng = s.rng
    if heads := rng.random() < 0.5:
        shape = [s.size("batch_size", 1), s.size("num_heads", 2)]
    else:
        shape = [s.size("batch_size", rng.choice((1, 2)))]
    crossed = s.level > 0 and rng.random() < 0.3
    queries = s.size("seq_len", rng.choice((8, 12, 16, 20, 24, 30)))
    keys = s.size("memory_len", rng.choice((10, 16, 21, 28))) if crossed else queries
    dim = s.size("head_dim" if heads else "dim", rng.choice((8, 16, 20, 24, 32)))
    for name, length in (("q", queries), ("k", keys), ("v", keys)):
        s.tensor(name, (*shape, length, dim), "torch.randn({shape})")
    s.variable = "out"

    extras = ["chain"] * (s.level + 1)
    options = [option for option in ("causal", "bias", "softcap") if not (option == "causal" and crossed)]
    chosen = rng.sample(options, min(rng.randint(0, 2), s.level + 1, len(options)))
    extras = extras[len(chosen) :]
    kind = rng.choice(("softmax", "softmax", "softmax", "sigmoid")) if s.level > 1 else "softmax"

    layout = Attended(s)
    kernel = layout.kernel
    for name in "qkv":
        kernel.pointer(name, name)
    kernel.scalar("S")
    length = kernel.scalar("T") if crossed else "S"
    kernel.scalar("D")
    kernel.head = [
        "batch = tl.program_id(1)",
        "rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
        "keys = tl.arange(0, BLOCK_T)",
        "dims = tl.arange(0, BLOCK_D)",
        "q_mask = (rows[:, None] < S) & (dims[None, :] < D)",
        f"k_mask = (dims[:, None] < D) & (keys[None, :] < {length})",
        f"v_mask = (keys[:, None] < {length}) & (dims[None, :] < D)",
        "q = tl.load(q_ptr + batch * S * D + rows[:, None] * D + dims[None, :], mask=q_mask, other=0.0)",
        f"k = tl.load(k_ptr + batch * {length} * D + keys[None, :] * D + dims[:, None], mask=k_mask, other=0.0)",
        f"v = tl.load(v_ptr + batch * {length} * D + keys[:, None] * D + dims[None, :], mask=v_mask, other=0.0)",
    ]
    fused = not {"bias", "softcap"} & set(chosen) and kind == "softmax" and rng.random() < 0.4
    steps, scale = kernel.steps, kernel.scalar("qk_scale", "q.shape[-1] ** -0.5")
    torch = [f"scores = q @ k.transpose(-2, -1) {rng.choice(('* q.shape[-1] ** -0.5', '/ q.shape[-1] ** 0.5'))}"]
    steps.append(f'scores = tl.dot(q, k, input_precision="ieee") * {scale}')
    s.ops += ["attention"] if kind == "softmax" else ["sigmoid_attention"]
    for option in chosen:
        if option == "softcap":
            cap = rng.choice(("2.0", "5.0", "10.0"))
            torch.append(f"scores = {cap} * torch.tanh(scores / {cap})")
            steps.append(f"scores = {cap} * (2.0 * tl.sigmoid(2.0 * scores / {cap}) - 1.0)")
        elif option == "bias":
            s.tensor("bias", (queries, keys))
            torch.append("scores = scores + bias")
            pointer = kernel.pointer("bias", "bias")
            steps.append(
                f"scores += tl.load({pointer} + rows[:, None] * {length} + keys[None, :],"
                f" mask=(rows[:, None] < S) & (keys[None, :] < {length}), other=0.0)"
            )
        s.ops.append(option)
    seen = f"keys[None, :] < {length}"
    hidden = NEG_INF
    if "causal" in chosen:
        seen = "(keys[None, :] < S) & (keys[None, :] <= rows[:, None])"
        torch += [
            "mask = torch.ones(q.shape[-2], q.shape[-2], device=q.device, dtype=torch.bool).tril()",
            'scores = scores.masked_fill(~mask, float("-inf"))',
        ]
    steps.append(f"scores = tl.where({seen}, scores, {hidden})")
    if kind == "softmax":
        torch.append("out = torch.softmax(scores, dim=-1) @ v")
        steps += [
            "scores = tl.exp(scores - tl.max(scores, axis=1)[:, None])",
            "scores = scores / tl.sum(scores, axis=1)[:, None]",
        ]
    else:
        torch.append("out = torch.sigmoid(scores) @ v")
        steps.append("scores = tl.sigmoid(scores)")
    steps.append('acc = tl.dot(scores, v, input_precision="ieee")')
    if fused:
        torch = [f"out = F.scaled_dot_product_attention(q, k, v{', is_causal=True' * ('causal' in chosen)})"]
    s.steps += torch
    tape = Tape(layout, (-1.0, 1.0) if kind == "softmax" else (-6.0, 6.0))
    tape.raw = False
    tape.chain(len(extras), (*ACTIVATIONS, *ARITHMETIC))
    layout.store("acc")
    s.name_kernel(kernel)
    s.contiguous()
    s.forward += [
        "S, D = q.shape[-2:]",
        *["T = k.shape[-2]"] * crossed,
        "batch = q.numel() // (S * D)",
        "out = torch.empty_like(q)",
    ]
    kernel.block("BLOCK_M", "32")
    kernel.block("BLOCK_T", f"max(16, triton.next_power_of_2({length}))")
    kernel.block("BLOCK_D", "max(16, triton.next_power_of_2(D))")
    s.forward += kernel.launch("(triton.cdiv(S, 32), batch)")
