"""Families that move or select elements: gathers, transposes, masks."""

from __future__ import annotations

from kernel_coder.tasks.generator.families.rowwise import affine_norm
from kernel_coder.tasks.generator.families.shapes import any_shape, rows_shape
from kernel_coder.tasks.generator.layouts import NEG_INF, Flat, Layout, Rows, Tape
from kernel_coder.tasks.generator.pointwise import ACTIVATIONS, ARITHMETIC, BINARY, BY_NAME, NORMAL, UNARY
from kernel_coder.tasks.generator.rowwise import REDUCTIONS, SHAPED, along
from kernel_coder.tasks.generator.sketch import Sketch

_POOL = (*ACTIVATIONS, *ARITHMETIC)


def gather(s: Sketch) -> None:
    """Generate rows of a table looked up by index: embeddings and index_select, with what follows."""
    rng = s.rng
    count = s.size("num_indices", rng.choice((4, 5, 6, 8)))
    learnt = rng.random() < 0.6
    rows = s.size("vocab_size" if learnt else "num_rows", rng.choice((20, 33, 50, 100)))
    dim = s.size("dim", rng.choice((24, 32, 40, 50, 64, 100)))
    layout = Rows(s)
    kernel = layout.kernel
    tape = Tape(layout)
    if learnt:
        s.tensor("ids", (count,), f"torch.randint(0, {rows}, ({{shape}},))")
        s.argument(rows)
        s.argument(dim)
        s.state.append(f"self.embedding = nn.Embedding({rows}, {dim})")
        s.steps.append("x = self.embedding(ids)")
        index, table = kernel.pointer("ids", "ids"), kernel.pointer("table", "self.embedding.weight")
        s.ops.append("embedding")
    else:
        s.tensor("x", (rows, dim))
        s.tensor("ids", (count,), f"torch.randint(0, {rows}, ({{shape}},))")
        s.step(rng.choice(("x[ids]", "torch.index_select(x, 0, ids)")))
        index, table = kernel.pointer("ids", "ids"), kernel.pointer("table", "x")
        s.ops.append("index_select")
    kernel.loads += [
        f"source = tl.load({index} + row)",
        f"x = tl.load({table} + source * n_cols + cols, mask=mask, other=0.0)",
    ]
    tape.raw, tape.pad = False, "0.0"
    plan = ["chain"] * (s.level + 1)
    if s.level > 0 and rng.random() < 0.6:
        plan[rng.randrange(len(plan))] = "operand"
    if s.level > 1 and rng.random() < 0.6:
        plan.append(rng.choice(("norm", "reduce", "shaped")))
    for what in plan:
        if what == "operand":
            if rng.random() < 0.5:
                s.tensor("y", (count, dim))
                tape.combine(BINARY[:8], "y")
            else:
                s.tensor("gain", (dim,))
                tape.combine(BINARY[:4], "gain", kind="last", label="_row")
        elif what == "norm":
            affine_norm(tape, "layer_norm", dim)
        elif what == "shaped":
            along(tape, SHAPED[rng.choice(("softmax", "rms_norm", "l2_normalize"))])
        elif what == "reduce":
            along(tape, REDUCTIONS[rng.choice(("sum", "max", "l2_norm", "mean"))])
            tape.reduced = True
        else:
            tape.chain(1, _POOL)
    if tape.reduced:
        layout.store_reduced("x")
    else:
        layout.store("x")
    s.name_kernel(kernel)
    s.contiguous()
    source = "self.embedding.weight" if learnt else "x"
    shape = "n_rows" if tape.reduced else "(n_rows, n_cols)"
    kernel.block("BLOCK", "triton.next_power_of_2(n_cols)")
    s.forward += [
        f"n_rows, n_cols = ids.numel(), {source}.shape[1]",
        f"out = torch.empty({shape}, device=ids.device, dtype={source}.dtype)",
        *kernel.launch("(n_rows,)"),
    ]


class Turned(Layout):
    """A tile that is read along its rows and written along its columns."""

    def __init__(self, sketch: Sketch, batched: bool) -> None:
        super().__init__(sketch)
        self.batched = batched
        self.kernel.head = [
            *["batch = tl.program_id(2)"] * batched,
            "rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]",
            "cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]",
            "mask = (rows < n_rows) & (cols < n_cols)",
        ]
        self.kernel.scalar("n_rows")
        self.kernel.scalar("n_cols")

    def index(self, kind: str) -> tuple[str, str | None]:
        start = "batch * n_rows * n_cols + " * self.batched
        turned = f"{start}cols * n_rows + rows"
        return (f"{start}rows * n_cols + cols" if kind == "same" else turned), "mask"

    def store(self, value: str) -> None:
        offset, mask = self.index("turned")
        self.kernel.results["out_ptr"] = "out"
        self.kernel.steps.append(f"tl.store(out_ptr + {offset}, {value}, mask={mask})")


def transpose(s: Sketch) -> None:
    """Generate two dimensions swapped, with operations before and after."""
    rng = s.rng
    batched = rng.random() < 0.6
    batch = [s.size("batch_size", rng.choice((1, 2)))] if batched else []
    rows = s.size("seq_len" if batched else "height", rng.choice((10, 20, 33, 40, 48)))
    cols = s.size("features" if batched else "width", rng.choice((12, 24, 30, 45, 50)))
    s.tensor("x", (*batch, rows, cols))
    layout = Turned(s, batched)
    tape = Tape(layout, (0.0, 1.0) if "rand(" in s.inputs["x"] else NORMAL)
    tape.load_input()
    before = rng.randint(0, s.level + 1)
    tape.chain(before, UNARY)
    spellings = ("x.transpose(1, 2)", "x.permute(0, 2, 1)") if batched else ("x.t()", "x.transpose(0, 1)", "x.T")
    s.step(f"{rng.choice(spellings)}{rng.choice(('.contiguous()', ''))}")
    s.ops.append("transpose")
    after = s.level + 1 - before
    if s.level > 0 and rng.random() < 0.5:
        s.tensor("y", (*batch, cols, rows))
        tape.combine(BINARY, "y", kind="turned")
        after -= 1
    tape.chain(max(after, 0 if len(s.ops) > 1 else 1), UNARY)
    layout.store("x")
    s.name_kernel(layout.kernel)
    s.contiguous()
    shape = "batch, n_rows, n_cols" if batched else "n_rows, n_cols"
    turned = "batch, n_cols, n_rows" if batched else "n_cols, n_rows"
    layout.kernel.block("BLOCK", "32")
    s.forward += [
        f"{shape} = x.shape",
        f"out = torch.empty(({turned}), device=x.device, dtype=x.dtype)",
        *layout.kernel.launch(
            f"(triton.cdiv(n_rows, 32), triton.cdiv(n_cols, 32){', batch' if batched else ''})",
        ),
    ]


def masking(s: Sketch) -> None:
    """Generate elements kept or replaced: triangles, boolean masks, conditions on another tensor."""
    rng = s.rng
    kind = rng.choice(("triangle", "masked_fill", "masked_softmax", "causal_softmax", "where"))
    if kind in ("masked_softmax", "causal_softmax") and s.level == 0:
        kind = "masked_fill"
    before = rng.randint(0, s.level)
    if kind in ("triangle", "causal_softmax"):
        size = s.size("size", rng.choice((6, 7, 8, 10)))
        shape = [size, size]
    else:
        shape = rows_shape(s) if kind == "masked_softmax" else any_shape(s)
    s.tensor("x", shape, "torch.randn({shape})")
    softmax = kind in ("masked_softmax", "causal_softmax")
    layout: Layout = Rows(s) if softmax or kind == "triangle" else Flat(s)
    tape = Tape(layout)
    tape.load_input()
    tape.chain(before, UNARY)
    tape.raw = False
    after = s.level + 1 - before
    if kind == "triangle":
        lower = rng.random() < 0.5
        diagonal = rng.choice((0, 0, 1, -1))
        name = "tril" if lower else "triu"
        shift = f" + {diagonal}".replace("+ -", "- ") if diagonal else ""
        s.step(f"torch.{name}(x{f', diagonal={diagonal}' if diagonal else ''})")
        tape.say(f"{{x}} = tl.where(cols {'<=' if lower else '>='} row{shift}, {{x}}, 0.0)")
        s.ops.append(name)
    elif kind == "causal_softmax":
        s.steps += ["keep = torch.ones_like(x, dtype=torch.bool).tril()"]
        s.step('torch.softmax(x.masked_fill(~keep, float("-inf")), dim=-1)')
        tape.say(f"{{x}} = tl.where(cols <= row, {{x}}, {NEG_INF})")
        tape.pad = NEG_INF
        along(tape, SHAPED["softmax"], spell=False)
        s.ops[-1] = "causal_softmax"
    elif kind == "where":
        s.tensor("y", shape, "torch.randn({shape})")
        s.tensor("z", shape, "torch.randn({shape})")
        tape.operand("y")
        tape.operand("z")
        cutoff = rng.choice(("0", "0.5", "-0.5"))
        test = rng.choice((">", "<"))
        s.step(f"torch.where(z {test} {cutoff}, x, y)")
        tape.say(f"{{x}} = tl.where(z {test} {float(cutoff)}, {{x}}, y)")
        s.ops.append("where")
    else:
        s.tensor("keep", shape, "torch.rand({shape}) > 0.4")
        fill = "-1e9" if softmax else rng.choice(("0.0", "-1.0", "2.0"))
        pointer = layout.kernel.pointer("keep", "keep")
        offset, _ = layout.index("same")
        layout.kernel.loads.append(f"keep = tl.load({pointer} + {offset}, mask=mask, other=0)")
        s.step(rng.choice((f"x.masked_fill(~keep, {fill})", f"torch.where(keep, x, {fill})")))
        tape.say(f"{{x}} = tl.where(keep, {{x}}, {fill})")
        s.ops.append("masked_fill")
        if softmax:
            along(tape, SHAPED["softmax"])
    if s.level > 2 and rng.random() < 0.5:
        s.tensor("residual", shape)
        tape.combine((BY_NAME["add"], BY_NAME["mul"]), "residual", label="_residual")
        after -= 1
    tape.chain(max(after, 0 if len(s.ops) > 1 else 1), UNARY)
    tape.finish()
