"""Losses: one number from predictions and targets, summed block by block."""

from __future__ import annotations

from kernel_coder.tasks.generator.families.shapes import any_shape
from kernel_coder.tasks.generator.layouts import Flat, Rows, Tape
from kernel_coder.tasks.generator.pointwise import ARITHMETIC, BY_NAME, UNARY
from kernel_coder.tasks.generator.rowwise import SHAPED, along
from kernel_coder.tasks.generator.sketch import Sketch

_GENTLE = tuple(op for op in UNARY if op.name not in ("cube", "exp", "square"))

# name, the reference's spellings ({r} says how they are reduced), kernel lines that leave `loss`, targets are 0 or 1
_ELEMENTWISE = (
    ("mse_loss", ("F.mse_loss(x, target{r})",), "diff = {x} - target\nloss = diff * diff", False),
    ("l1_loss", ("F.l1_loss(x, target{r})",), "loss = tl.abs({x} - target)", False),
    (
        "smooth_l1_loss",
        ("F.smooth_l1_loss(x, target{r})",),
        "diff = tl.abs({x} - target)\nloss = tl.where(diff < 1.0, 0.5 * diff * diff, diff - 0.5)",
        False,
    ),
    (
        "huber_loss",
        ("F.huber_loss(x, target, delta=2.0{r})",),
        "diff = tl.abs({x} - target)\nloss = tl.where(diff < 2.0, 0.5 * diff * diff, 2.0 * (diff - 1.0))",
        False,
    ),
    (
        "bce_with_logits",
        ("F.binary_cross_entropy_with_logits(x, target{r})",),
        "loss = tl.maximum({x}, 0.0) - {x} * target + tl.log(1.0 + tl.exp(-tl.abs({x})))",
        True,
    ),
    (
        "soft_margin_loss",
        ("F.soft_margin_loss(x, 2 * target - 1{r})",),
        "margin = -(2.0 * target - 1.0) * {x}\nloss = tl.maximum(margin, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(margin)))",
        True,
    ),
    (
        "hinge_loss",
        ("torch.clamp(1 - (2 * target - 1) * x, min=0).{m}()", "F.relu(1 - (2 * target - 1) * x).{m}()"),
        "loss = tl.maximum(1.0 - (2.0 * target - 1.0) * {x}, 0.0)",
        True,
    ),
    (
        "log_cosh_loss",
        ("torch.log(torch.cosh(x - target)).{m}()",),
        "diff = tl.abs({x} - target)\nloss = diff + tl.log(1.0 + tl.exp(-2.0 * diff)) - 0.6931471805599453",
        False,
    ),
    (
        "charbonnier_loss",
        ("torch.sqrt((x - target) ** 2 + 0.01).{m}()",),
        "diff = {x} - target\nloss = tl.sqrt(diff * diff + 0.01)",
        False,
    ),
    (
        "poisson_loss",
        ("F.poisson_nll_loss(x, target{r})", "(torch.exp(x) - target * x).{m}()"),
        "loss = tl.exp({x}) - target * {x}",
        True,
    ),
)


def loss(s: Sketch) -> None:
    """Generate an element-wise loss or cross-entropy, summed or averaged."""
    if s.rng.random() < 0.25:
        _cross_entropy(s)
    else:
        _elementwise(s)


def _elementwise(s: Sketch) -> None:
    rng = s.rng
    shape = any_shape(s)
    name, spellings, triton, binary = rng.choice(_ELEMENTWISE)
    mean = rng.random() < 0.7
    s.tensor("x", shape, "torch.randn({shape})")
    s.tensor("target", shape, "torch.rand({shape}).round()" if binary else "torch.randn({shape})")
    layout = Flat(s)
    layout.pads = True
    layout.kernel.head.insert(0, "pid = tl.program_id(0)")
    layout.kernel.head[1] = "index = pid * BLOCK + tl.arange(0, BLOCK)"
    tape = Tape(layout)
    tape.load_input()
    tape.operand("target")
    before = rng.randint(0, s.level + 1)
    weighted = s.level > 1 and rng.random() < 0.5
    for _ in range(before):
        tape.chain(1, _GENTLE if name != "poisson_loss" else ARITHMETIC)
    tape.say(triton)
    layout.var = s.variable = "loss"
    reduced = "mean" if mean else "sum"
    spelling = rng.choice(spellings)
    s.ops.append(name)
    tape.settle((0.0, 3.0))
    rest = s.level + 1 - before - weighted
    direct = not weighted and (rest <= 0 or rng.random() < 0.5)
    if direct:
        s.step(spelling.format(r="" if mean else ', reduction="sum"', m=reduced))
    else:
        s.step(spelling.format(r=', reduction="none"', m="").replace(".()", ""))
        if weighted:
            s.tensor("weight", shape, "torch.rand({shape})")
            tape.combine((BY_NAME["mul"],), "weight", label="_weight")
        for _ in range(max(rest, 0)):
            tape.chain(1, ARITHMETIC)
        s.step(f"loss.{reduced}()")
    s.ops.append(reduced)
    tape.say("loss = tl.where(mask, loss, 0.0)\ntl.store(partial_ptr + pid, tl.sum(loss, axis=0))")
    kernel = layout.kernel
    kernel.results["partial_ptr"] = "partial"
    kernel.scalars = {"numel": "numel", **kernel.scalars}
    kernel.block("BLOCK", "1024")
    s.name_kernel(kernel)
    s.contiguous()
    s.forward += [
        "numel = x.numel()",
        "n_blocks = triton.cdiv(numel, 1024)",
        "partial = torch.empty(n_blocks, device=x.device, dtype=x.dtype)",
        *kernel.launch("(n_blocks,)"),
    ]
    total = "partial.sum() / numel" if mean else "partial.sum()"
    rest = max(rest, 0) if direct else 0
    s.result = _after(s, total, rest)


def _after(s: Sketch, total: str, count: int) -> str:
    """Append plain arithmetic on the finished number, in both texts."""
    if not count:
        return total
    for _ in range(min(count, 1)):
        factor = s.rng.choice(("0.5", "2.0", "10.0"))
        s.step(f"{s.variable} * {factor}")
        s.ops.append("scale")
        total = f"{factor} * {total}"
    return total


def _cross_entropy(s: Sketch) -> None:
    """Write the cross-entropy of rows of logits, with one program for each row."""
    rng = s.rng
    shape = [s.size("batch_size", rng.choice((4, 5, 6, 8))), s.size("num_classes", rng.choice((10, 17, 33, 50, 100)))]
    s.tensor("x", shape, "torch.randn({shape})")
    mean = rng.random() < 0.7
    layout = Rows(s)
    tape = Tape(layout)
    tape.load_input()
    soft = s.level > 0 and rng.random() < 0.4
    tape.chain(rng.randint(0, s.level) + 1, _GENTLE)
    if soft:
        s.tensor("target", shape, "torch.rand({shape})")
        tape.operand("target")
    else:
        s.tensor("target", shape[:1], "torch.randint(0, num_classes, ({shape},))")
        layout.kernel.loads.append(f"target = tl.load({layout.kernel.pointer('target', 'target')} + row)")
    reduction = "" if mean else ', reduction="sum"'
    along(tape, SHAPED["log_softmax"], spell=False)
    s.ops[-1] = "soft_cross_entropy" if soft else "cross_entropy"
    s.ops.append("mean" if mean else "sum")
    s.variable = "loss"
    if soft:
        s.step(f"-(target * torch.log_softmax(x, dim=-1)).sum(dim=-1).{'mean' if mean else 'sum'}()")
        tape.say("loss = -tl.sum(tl.where(mask, target * {x}, 0.0), axis=0)")
    else:
        s.step(
            rng.choice(
                (
                    f"F.cross_entropy(x, target{reduction})",
                    f"F.nll_loss(torch.log_softmax(x, dim=-1), target{reduction})",
                )
            )
        )
        tape.say("loss = -tl.sum(tl.where(cols == target, {x}, 0.0), axis=0)")
    layout.kernel.results["loss_ptr"] = "loss"
    tape.say("tl.store(loss_ptr + row, loss)")
    s.name_kernel(layout.kernel)
    s.contiguous()
    layout.kernel.block("BLOCK", "triton.next_power_of_2(n_cols)")
    s.forward += [
        "n_rows, n_cols = x.shape",
        "loss = torch.empty(n_rows, device=x.device, dtype=x.dtype)",
        *layout.kernel.launch("(n_rows,)"),
    ]
    s.result = "loss.mean()" if mean else "loss.sum()"
