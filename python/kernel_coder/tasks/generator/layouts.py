"""Layouts, which divide a kernel's data between programs, and the tape, which writes operations into a kernel.

A layout defines the elements that a program holds, the indices of operands of other shapes, and the axis of reductions.
The tape appends operations to reference and kernel at the same time, so that a composition becomes one kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random

from kernel_coder.tasks.generator.pointwise import NORMAL, Bound, Pointwise, Range, UnsuitableError, draw
from kernel_coder.tasks.generator.sketch import Kernel, Sketch

NEG_INF = '-float("inf")'
POS_INF = 'float("inf")'


class Layout(ABC):
    """The elements that one program holds in its running value."""

    var = "x"
    axis = 0
    keep = ""  # index that broadcasts a reduced value back
    mask = "mask"
    extent = "n_cols"  # number of elements of a reduction
    pads = False  # whether loads state the value of masked elements

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.kernel = Kernel()
        sketch.kernels.append(self.kernel)

    @abstractmethod
    def index(self, kind: str) -> tuple[str, str | None]:
        """Return the offset and mask of an operand: `same` shape, one value per `last` dimension, or per `lead`ing
        ones."""

    def load(self, pointer: str, kind: str, other: str | None = None) -> str:
        offset, mask = self.index(kind)
        if mask is None:
            return f"tl.load({pointer} + {offset})"
        padding = f", other={other or '0.0'}" if self.pads or other else ""
        return f"tl.load({pointer} + {offset}, mask={mask}{padding})"

    def store(self, value: str) -> None:
        """Append the store of `value` at the offsets of the running value."""
        offset, mask = self.index("same")
        self.kernel.results["out_ptr"] = "out"
        self.kernel.steps.append(f"tl.store(out_ptr + {offset}, {value}, mask={mask})")

    def store_reduced(self, value: str) -> None:
        """Append the store of a reduced `value`. Only layouts with an axis to reduce have it."""
        raise TypeError(f"{type(self).__name__} has no axis to reduce")

    def launch(self) -> None:
        """Append the lines of `forward` that allocate `out` and start the kernel. Layouts of families that write these
        lines themselves do not have it."""
        raise TypeError(f"{type(self).__name__} writes its launch itself")

    def launch_reduced(self, keepdim: bool, dtype: str = "x.dtype") -> None:
        """The same for an `out` of reduced values, of the given dtype."""
        raise TypeError(f"{type(self).__name__} has no axis to reduce")


class Flat(Layout):
    """Blocks of 1024 neighbouring elements, for any shape."""

    def __init__(self, sketch: Sketch) -> None:
        super().__init__(sketch)
        self.kernel.head = ["index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "mask = index < numel"]

    def index(self, kind: str) -> tuple[str, str | None]:
        if kind == "same":
            return "index", "mask"
        if kind == "channel":
            return f"index // {self.kernel.scalar('plane')} % {self.kernel.scalar('channels')}", "mask"
        n_cols = self.kernel.scalar("n_cols", "x.shape[-1]")
        return f"index {'%' if kind == 'last' else '//'} {n_cols}", "mask"

    def launch(self) -> None:
        kernel, forward = self.kernel, self.sketch.forward
        kernel.scalars = {"numel": "numel", **kernel.scalars}
        kernel.block("BLOCK", "1024")
        forward.append("out = torch.empty_like(x)")
        forward.append("numel = x.numel()")
        if "plane" in kernel.scalars:
            forward += ["channels = x.shape[1]", "plane = x[0, 0].numel()"]
        forward += kernel.launch("(triton.cdiv(numel, 1024),)")


class Rows(Layout):
    """One program for each row: all but the last dimension are rows."""

    pads = True

    def __init__(self, sketch: Sketch, columns: str = "x.shape[-1]") -> None:
        super().__init__(sketch)
        self.columns = columns  # the length of a row, as text of `forward`
        self.kernel.head = ["row = tl.program_id(0)", "cols = tl.arange(0, BLOCK)", "mask = cols < n_cols"]
        self.kernel.scalar("n_cols")

    def index(self, kind: str) -> tuple[str, str | None]:
        offsets = {"same": "row * n_cols + cols", "last": "cols", "lead": "row"}
        return offsets[kind], None if kind == "lead" else "mask"

    def store_reduced(self, value: str) -> None:
        self.kernel.results["out_ptr"] = "out"
        self.kernel.steps.append(f"tl.store(out_ptr + row, {value})")

    def launch(self) -> None:
        self.sketch.forward.append("out = torch.empty_like(x)")
        self._start()

    def launch_reduced(self, keepdim: bool, dtype: str = "x.dtype") -> None:
        shape = "(*x.shape[:-1], 1)" if keepdim else "x.shape[:-1]"
        self.sketch.forward.append(f"out = torch.empty({shape}, device=x.device, dtype={dtype})")
        self._start()

    def _start(self) -> None:
        self.kernel.block("BLOCK", "triton.next_power_of_2(n_cols)")
        self.sketch.forward += [f"n_cols = {self.columns}", "n_rows = x.numel() // n_cols"]
        self.sketch.forward += self.kernel.launch("(n_rows,)")


class Columns(Layout):
    """A tile of whole columns of one batch entry: work along dimension 1 of at least 3, or dimension 0 of 2."""

    pads = True
    axis = 0
    keep = "[None, :]"
    extent = "n_rows"

    def __init__(self, sketch: Sketch, *, batched: bool) -> None:
        super().__init__(sketch)
        self.batched = batched
        across = "tl.program_id(1)" if batched else "tl.program_id(0)"
        self.kernel.head = [
            *["batch = tl.program_id(0)"] * batched,
            "rows = tl.arange(0, BLOCK_R)",
            f"cols = {across} * BLOCK_C + tl.arange(0, BLOCK_C)",
            "mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)",
            f"index = {'batch * n_rows * n_cols + ' * batched}rows[:, None] * n_cols + cols[None, :]",
        ]
        self.kernel.scalar("n_rows")
        self.kernel.scalar("n_cols")

    def index(self, kind: str) -> tuple[str, str | None]:
        if kind != "same":
            raise ValueError(f"no operand of kind {kind} along the first axis")
        return "index", "mask"

    def store_reduced(self, value: str) -> None:
        self.kernel.results["out_ptr"] = "out"
        offset = "batch * n_cols + cols" if self.batched else "cols"
        self.kernel.steps.append(f"tl.store(out_ptr + {offset}, {value}, mask=cols < n_cols)")

    def launch(self) -> None:
        self.sketch.forward.append("out = torch.empty_like(x)")
        self._start()

    def launch_reduced(self, keepdim: bool, dtype: str = "x.dtype") -> None:
        kept = "1, " * keepdim
        flat = "(1, x.shape[1])" if keepdim else "x.shape[1]"
        shape = f"(x.shape[0], {kept}*x.shape[2:])" if self.batched else flat
        self.sketch.forward.append(f"out = torch.empty({shape}, device=x.device, dtype={dtype})")
        self._start()

    def _start(self) -> None:
        self.kernel.block("BLOCK_R", "triton.next_power_of_2(n_rows)")
        self.kernel.block("BLOCK_C", "64")
        forward = self.sketch.forward
        if self.batched:
            forward += ["batch, n_rows = x.shape[:2]", "n_cols = x[0, 0].numel()"]
            forward += self.kernel.launch("(batch, triton.cdiv(n_cols, 64))")
        else:
            forward.append("n_rows, n_cols = x.shape")
            forward += self.kernel.launch("(triton.cdiv(n_cols, 64),)")


class Tape:
    """Writes operations into reference and kernel, and tracks the range of values and the contents of masked
    elements."""

    def __init__(self, layout: Layout, span: Range = NORMAL) -> None:
        self.layout = layout
        self.sketch = layout.sketch
        self.kernel = layout.kernel
        self.span = span
        self.error = 3e-8  # estimated error of the running value, relative to its largest element
        self.pad: str | None = None  # value of masked elements; None: undefined
        self.reduced = False
        self.raw = True  # no operation has been applied to the input yet
        self._first_load: int | None = None
        self._reduces = False

    @property
    def rng(self) -> Random:
        return self.sketch.rng

    # Loads --------------------------------------------------------------------------------------------------------

    def load_input(self, name: str = "x") -> None:
        """Begin with this argument of forward as the running value."""
        pointer = self.kernel.pointer(name, name)
        self._first_load = len(self.kernel.loads)
        self._pointer = pointer
        self.kernel.loads.append(f"{self.layout.var} = {self.layout.load(pointer, 'same')}")
        self.pad = "0.0" if self.layout.pads else None

    def operand(self, name: str, passed: str | None = None, kind: str = "same", suffix: str = "") -> str:
        """Load another tensor at the elements of the running value. Return its name in the kernel."""
        pointer = self.kernel.pointer(name, passed or name)
        self.kernel.loads.append(f"{name} = {self.layout.load(pointer, kind)}{suffix}")
        return name

    def need(self, identity: str) -> None:
        """Set masked elements to `identity`, so that they do not count in what follows."""
        if self.pad == identity:
            return
        if self.raw and self._first_load is not None:
            load = self.layout.load(self._pointer, "same", identity)
            self.kernel.loads[self._first_load] = f"{self.layout.var} = {load}"
        else:
            self.say(f"{{x}} = tl.where({self.layout.mask}, {{x}}, {identity})")
        self.pad = identity

    # Operations ---------------------------------------------------------------------------------------------------

    def say(self, triton: str) -> None:
        """Append kernel lines; `{x}` is the running value."""
        self.kernel.steps += triton.replace("{x}", self.layout.var).split("\n")
        self.raw = False

    def apply(self, bound: Bound, second: str | None = None, torch_second: str | None = None, name: str = "") -> None:
        """Append an operation on single elements; `second` is the operand's name in the kernel."""
        op, rng, sketch = bound.op, self.rng, self.sketch
        texts = {key: _number(value) for key, value in bound.values.items()}
        torch_texts = dict(texts)
        for key, (argument, _) in op.constants.items():
            free = argument not in sketch.arguments and argument not in sketch.inputs
            if free and sketch.level and rng.random() < 0.3:
                torch_texts[key] = sketch.setting(argument, texts[key])
                texts[key] = self.kernel.scalar(argument, f"self.{argument}")
        # Sometimes as a layer; a layer's constants are its own arguments.
        taken = any(line.startswith(f"self.{op.name} = ") for line in sketch.modules)
        if op.module is not None and torch_texts == texts and not taken and rng.random() < 0.4:
            sketch.modules.append(f"self.{op.name} = {op.module.format(**texts)}")
            sketch.step(f"self.{op.name}({sketch.variable})")
        else:
            sketch.step(self._torch(op, torch_texts, torch_second))
        lines = op.triton.format(x=self.layout.var, y=second or "", **texts)
        self.say(_signs(lines))
        self.pad = None
        sketch.ops.append(name or op.name)

    def _torch(self, op: Pointwise, texts: dict[str, str], second: str | None) -> str:
        spelling = self.rng.choice(op.torch)
        return _signs(spelling.format(x=self.sketch.variable, y=second or "", **texts))

    def chain(self, count: int, pool: tuple[Pointwise, ...]) -> None:
        """Append `count` operations without operands, each of which has an effect on the values that the one before
        leaves."""
        for _ in range(count):
            last = self.sketch.ops[-1] if self.sketch.ops else ""
            drawn = draw(self.rng, pool, self.span, self.error, avoid=last, raw=self.raw)
            self.span, self.error = drawn.span, drawn.error
            self.apply(drawn.bound)

    def combine(
        self,
        pool: tuple[Pointwise, ...],
        name: str,
        *,
        passed: str | None = None,
        torch: str | None = None,
        kind: str = "same",
        label: str = "",
    ) -> None:
        """Append an operation with an operand: `name` in the kernel, `passed` by forward, `torch` in the reference."""
        drawn = draw(self.rng, pool, self.span, self.error)
        self.span, self.error = drawn.span, drawn.error
        operand = self.operand(name, passed, kind)
        self.apply(drawn.bound, operand, torch or passed or name, f"{drawn.bound.op.name}{label}")

    def settle(self, span: Range, *, centred: bool = False) -> None:
        """Set the range of the values after an operation along an axis, and add its rounding error.

        With `centred` the operation subtracts the mean. That makes the relative error larger, the narrower the range
        of the values was.
        """
        if centred:
            width = (self.span[1] - self.span[0]) / max(abs(self.span[0]), abs(self.span[1]))
            self.error *= max(3.0 / width, 1.0)
            if width < 0.6:
                raise UnsuitableError("too narrow a band to be centred")
        self.error += 1e-7
        if self.error > 8e-7:
            raise UnsuitableError("too sensitive")
        self.span = span

    # The end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        self.layout.store(self.layout.var)
        self.sketch.name_kernel(self.kernel)
        self.sketch.contiguous()
        self.layout.launch()

    def finish_reduced(self, keepdim: bool, dtype: str = "x.dtype") -> None:
        self.layout.store_reduced(self.layout.var)
        self.sketch.name_kernel(self.kernel)
        self.sketch.contiguous()
        self.layout.launch_reduced(keepdim, dtype)


def _number(value: float) -> str:
    return repr(float(value))


def _signs(text: str) -> str:
    """Write `x + -0.3` as `x - 0.3`."""
    return text.replace("+ -", "- ").replace("- -", "+ ")
