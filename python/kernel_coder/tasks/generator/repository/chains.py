"""Chains: a product or convolution with the operations that follow it, in as few kernels as the reductions allow."""

from __future__ import annotations

from kernel_coder.tasks.generator.pointwise import UnsuitableError
from kernel_coder.tasks.generator.repository import convolutions, norms, pooling, products, rows
from kernel_coder.tasks.generator.repository.draft import Draft
from kernel_coder.tasks.generator.repository.elementwise import (
    ACTIVATIONS,
    ARITHMETIC,
    SECOND,
    apply,
    flat_kernel,
    gate,
    parameter,
    scalar_parameter,
    second_input,
)
from kernel_coder.tasks.generator.repository.rows import PHRASES, TORCH, reduce, rescale

PRODUCERS = (
    ("linear", 9),
    ("conv2d", 8),
    ("conv3d", 4),
    ("conv_transpose2d", 5),
    ("conv_transpose3d", 6),
    ("conv1d", 1),
    ("conv_transpose1d", 1),
)
MAX_FLOPS = 1e11
"""Upper limit for the floating-point operations of a chain's convolution, since several kernels follow it."""

_UNUSUAL = ("exp", "square", "threshold", "softshrink", "quick_gelu")
POINTWISE = tuple(each.name for each in (*ACTIVATIONS, *ACTIVATIONS, *ARITHMETIC) if each.name not in _UNUSUAL)
REDUCED = ("sum", "mean", "max", "min", "logsumexp")


class Chain:
    """Adds operations to a draft, and knows the shape of the value so far."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.rng = draft, draft.rng
        producer = self.rng.choices([name for name, _ in PRODUCERS], weights=[share for _, share in PRODUCERS])[0]
        if producer == "linear":
            self.ndim, self.features = 0, products.linear(draft)
        else:
            self.ndim = int(producer[-2])
            transposed = "transpose" in producer
            self.features = convolutions.convolution(
                draft,
                self.ndim,
                transposed=transposed,
                style="strided" if transposed and self.rng.random() < 0.6 else "plain",
                in_chain=True,
                most=MAX_FLOPS,
            )
        self.dims = 2 + self.ndim  # number of dimensions of the value so far
        self.has_column = False  # a linear layer's rows are reduced to one number each
        self.may_soften = False  # dimension 1 has other things than the features
        self.has_channels = True  # dimension 1 is still that of the features
        self.has_space = self.ndim > 0
        self.has_rows = True  # there is something left to reduce
        self.heavy = 0

    def extend(self, count: int) -> None:
        """Adds operations until the draft has `count`."""
        while len(self.draft.ops) < count:
            self._one()

    def _one(self) -> None:
        options = [(self._pointwise, 6.0), (lambda: scalar_parameter(self.draft), 0.5), (lambda: gate(self.draft), 0.6)]
        if not self.has_channels and self.has_rows and self.heavy < 3:
            options.append((self._reduce, 1.0))
        if self.may_soften and self.heavy < 3:
            options.append((self._softmax, 1.0))
        if self.ndim == 0 and not self.has_channels and self.has_column:
            options.append((self._add_input, 2.0))
        if self.has_channels and self.draft.kernels[-1].channel:
            options.append((self._parameter, 2.0))
        if self.ndim == 0 and self.has_channels and len(self.draft.inputs) == 1:
            options.append((self._second, 0.6))
        if self.heavy < 2 and self.has_channels and self.has_rows:
            options += [(self._norm, 1.6), (self._reduce, 1.6), (self._softmax, 0.6)]
            if self.has_space:
                options += [(self._global, 0.7), *([(self._pool, 3.0)] if pooling.fits(self.draft) else [])]
            if self.ndim == 0 and len(self.draft.kernels) == 1:
                options.append((self._pool_rows, 0.5))
            options.append((self._residual, 0.4))
        options.append((self._kept, 0.7))
        chosen = self.rng.choices([each for each, _ in options], weights=[share for _, share in options])[0]
        chosen()

    def _pointwise(self) -> None:
        name = self.rng.choice(POINTWISE)
        style = self.rng.choice(("call", "call", "layer", "argument", "argument"))
        apply(self.draft, name, style)

    def _parameter(self) -> None:
        parameter(self.draft, self.features, self.ndim)

    def _second(self) -> None:
        second_input(self.draft, (self.draft.inputs[0].dims[0], self.features))

    def _norm(self) -> None:
        self.heavy += 1
        kind = self.rng.choice(("group", "group", "batch", "batch", "instance", "layer"))
        if kind == "group":
            norms.group_norm(self.draft, features=self.features)
        elif kind == "batch":
            norms.batch_norm(self.draft, features=self.features, ndim=self.ndim)
        elif kind == "instance":
            sizes = self.draft.shape
            if self.ndim and (min(sizes[1][2:]) * len(sizes[1]) < 6 or max(sizes[0][2:]) < 2):
                raise UnsuitableError("the maps are too small for statistics")
            norms.instance_norm(self.draft, features=self.features, ndim=self.ndim)
        elif self.ndim:
            self._last_norm()
        else:
            norms.layer_norm(self.draft, features=self.features)

    def _last_norm(self) -> None:
        """Append a layer norm over the last dimension of feature maps."""
        draft = self.draft
        real, little = draft.shape[0][-1], draft.shape[1][-1]
        if min(real, little) < 3:
            raise UnsuitableError("the maps are too small for statistics")
        pair = ((real,), (little,)) if self.rng.random() < 0.5 else (real, little)
        kind = "tuple" if isinstance(pair[0], tuple) else "int"
        name = draft.argument(draft.free("norm_shape"), pair, kind, doc="Size of the last dimension")
        norms.layer_norm(draft, features=name)

    def _softmax(self) -> None:
        self.heavy += 1
        name = self.rng.choice(("softmax", "softmax", "log_softmax"))
        text = self.rng.choice(TORCH[name]).replace("{d}", "1")
        if self.rng.random() < 0.3:
            layer = self.draft.free("softmax")
            self.draft.line(
                f"self.{layer} = nn.{'Softmax' if name == 'softmax' else 'LogSoftmax'}(dim=1)", is_kept=False
            )
            text = f"self.{layer}({{x}})"
        self.draft.steps.append(text)
        self.draft.op(name, f"{PHRASES[name]} over the channels" if self.ndim else PHRASES[name])
        rescale(self.draft, name, "1")

    def _reduce(self) -> None:
        """Append a reduction of the channels, or of another dimension but the batch, with or without keepdim."""
        if self.dims > 2 and self.rng.random() < 0.15:
            self._reduce_all()
            return
        self.heavy += 1
        rng = self.rng
        name = rng.choice(REDUCED)
        dim = 1 if self.dims == 2 or rng.random() < 0.65 else rng.randrange(2, self.dims)
        keepdim = rng.random() < 0.7
        text = rng.choice(TORCH[name]).replace("{d}", str(dim)).replace("{k}", ", keepdim=True" * keepdim)
        self.draft.steps.append(text)
        what = "a spatial dimension" if dim > 1 else "the channels" if self.has_channels else "a dimension"
        self.draft.op(name, f"{PHRASES[name]} over {what if self.ndim else 'each row'}")
        reduce(self.draft, name, str(dim), keepdim=keepdim)
        self.dims -= not keepdim
        self.has_channels = self.has_space = False
        self.has_rows = self.dims > 1
        self.has_column = keepdim
        self.may_soften = self.dims > 1 and (dim > 1 or not keepdim)

    def _reduce_all(self) -> None:
        """Append a mean or sum over all dimensions but the batch."""
        self.heavy += 1
        axes = tuple(range(1, self.dims))
        name = self.rng.choice(("mean", "sum"))
        words = repr(self.rng.choice((axes, list(axes))))
        self.draft.steps.append(self.rng.choice((f"torch.{name}({{x}}, dim={words})", f"{{x}}.{name}(dim={words})")))
        self.draft.op(f"{name}_rest", f"{PHRASES[name]} over all dimensions but the batch")
        source = self.draft.value
        self._rows(name, "sample", f"R, I = {source}[0].numel(), 1", "{x}.shape[0]")
        self.has_channels = self.has_space = self.has_rows = self.may_soften = False

    def _rows(self, name: str, what: str, extents: str, out: str) -> None:
        """Open a kernel that reduces contiguous rows, one for each `what`, to an output of the shape `out`."""
        start, other, loop, end, _ = rows.REDUCTIONS[name]
        rows.row_kernel(
            self.draft,
            f"{what}_{name}",
            f"each program reduces one {what} to its {name}",
            [start, *rows._looped(rows.load(other), *loop), *end],
            dim="",
            out=f"torch.empty({out}, device={{x}}.device, dtype={{x}}.dtype)",
            reduced=True,
            value="y",
            tail=["tl.store(out_ptr + o * I + i, y, mask=i < I)"],
            extents=[extents],
        )

    def _pool(self) -> None:
        kind = self.rng.choice(("max", "avg"))
        for number in range(self.rng.choice((1, 1, 2))):
            if number and not pooling.fits(self.draft):
                return
            self.heavy += 1
            kernels = len(self.draft.kernels)
            pooling.pool_after(self.draft, self.ndim, kind)
            assert len(self.draft.kernels) == kernels + 1

    def _global(self) -> None:
        """Append the mean over all positions of a channel, with or without dimensions of one position."""
        self.heavy += 1
        draft, ndim, rng = self.draft, self.ndim, self.rng
        axes = tuple(range(2, 2 + ndim))
        keepdim = rng.random() < 0.65
        if rng.random() < 0.35:
            layer = draft.free(rng.choice(("global_avg_pool", "avgpool", "gap")))
            ones = ", ".join(["1"] * ndim)
            draft.line(f"self.{layer} = nn.AdaptiveAvgPool{ndim}d({f'({ones})' if ndim > 1 else '1'})", is_kept=False)
            flat = "" if keepdim else rng.choice((".flatten(1)", ".squeeze(-1)" * ndim))
            draft.steps.append(f"self.{layer}({{x}}){flat}")
        else:
            words = repr(rng.choice((axes, list(axes)))) if ndim > 1 else "2"
            words += ", keepdim=True" * keepdim
            draft.steps.append(rng.choice((f"torch.mean({{x}}, dim={words})", f"{{x}}.mean(dim={words})")))
        draft.op("global_avg_pool", "global average pooling")
        source = draft.value
        ones = ", 1" * ndim if keepdim else ""
        self._rows("mean", "channel", f"R, I = {source}[0, 0].numel(), 1", f"(*{source}.shape[:2]{ones},)")
        self.has_space = self.has_rows = False
        if not keepdim:  # The value is a matrix now. Its rows can be reduced.
            self.dims, self.has_channels, self.has_rows, self.may_soften = 2, False, True, True

    def _pool_rows(self) -> None:
        """Append max pooling along the rows of a linear layer."""
        self.heavy += 1
        pooling.pool_rows(self.draft)
        self.has_channels = False

    def _kept(self) -> None:
        """Append operations and the addition of the value before them, all in the last kernel."""
        draft, rng = self.draft, self.rng
        kernel = draft.kernels[-1]
        name = draft.free(rng.choice(("original", "saved", "identity", "shortcut", "x0")))
        spelt = rng.choice(("{x}", "{x}", "{x}.clone()", "{x}.clone().detach()"))
        variable = draft.free("kept")
        draft.steps.append(f"={name} = {spelt}")
        kernel.steps.append(f"{variable} = {kernel.value}")
        for _ in range(rng.choice((1, 1, 2))):
            if self.has_channels and kernel.channel and rng.random() < 0.4:
                self._parameter()
            else:
                self._pointwise()
        for kind in rng.choice((("add",), ("add",), ("add",), ("mul",), ("add", "mul"), ("add", "mul", "add"))):
            kernel.steps.append(SECOND[kind][1].format(x=kernel.value, y=variable))
            draft.steps.append(SECOND[kind][0].format(x="{x}", y=name))
            draft.op("residual" if kind == "add" else "residual_product", f"{SECOND[kind][2]} with the value before")
        kernel.fused.append("the value before them")

    def _add_input(self) -> None:
        """Append the addition of the module's input to a column of numbers, one for each row."""
        draft = self.draft
        name = draft.free(self.rng.choice(("original", "saved", "identity", "shortcut")))
        column = draft.value
        draft.steps.insert(0, f"={name} = {self.rng.choice(('{x}', '{x}.clone()', '{x}.clone().detach()'))}")
        draft.steps.append(self.rng.choice((f"{{x}} + {name}", f"{name} + {{x}}")))
        draft.op("add_own_input", "an addition of the input")
        draft.value = "x"
        draft.before.append("x = x.contiguous()")
        kernel = flat_kernel(draft, "add_input", [("y_ptr", column)])
        kernel.is_flat = False
        kernel.scalars.append(("D", "x.shape[1]"))
        kernel.steps.append("x = x + tl.load(y_ptr + i // D, mask=mask)")
        kernel.thought = "each program adds a row's number to a block of the input"
        self.has_rows = self.has_column = self.may_soften = False

    def _residual(self) -> None:
        """Append a norm, an activation, and the addition of the value before them."""
        draft = self.draft
        name = draft.free(self.rng.choice(("shortcut", "identity", "residual")))
        draft.steps.append(f"={name}")
        before = draft.value
        self._norm()
        if self.rng.random() < 0.6:
            self._pointwise()
        kernel = draft.kernels[-1]
        pointer = draft.free(f"{name}_ptr")
        kernel.pointers.append((pointer, before))
        kernel.steps.append(
            f"{kernel.value} = {kernel.value} + tl.load({pointer} + {kernel.offset}, mask={kernel.mask})"
        )
        kernel.fused.append("the shortcut")
        draft.steps.append(f"{{x}} + {name}")
        draft.op("residual", "a residual addition")


def chain(draft: Draft, count: int) -> None:
    """Generate a chain of `count` operations or a few more."""
    Chain(draft).extend(count)
    assert len(draft.ops) >= 2
