"""Chains: a product or convolution with the operations that follow it, in as few kernels as the reductions allow."""

from __future__ import annotations

from kernel_coder.tasks.generator.pointwise import UnsuitableError
from kernel_coder.tasks.generator.repository import convolutions, norms, pooling, products, rows
from kernel_coder.tasks.generator.repository.draft import Draft
from kernel_coder.tasks.generator.repository.elementwise import (
    ACTIVATIONS,
    ARITHMETIC,
    apply,
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
MOST_FLOPS = 1e11
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
                most=MOST_FLOPS,
            )
        self.has_channels = True  # dimension 1 is still that of the features
        self.has_space = self.ndim > 0
        self.has_rows = True  # there is something left to reduce
        self.heavy = 0

    def extend(self, count: int) -> None:
        """Adds operations until the draft has `count`."""
        while len(self.draft.ops) < count:
            self._one()

    def _one(self) -> None:
        options = [(self._pointwise, 6.0), (lambda: scalar_parameter(self.draft), 0.3)]
        if not self.has_channels and self.has_rows and self.heavy < 3:
            options.append((self._reduce, 1.0))
        if self.has_channels and self.draft.kernels[-1].channel:
            options.append((self._parameter, 2.0))
        if self.ndim == 0 and self.has_channels and len(self.draft.inputs) == 1:
            options.append((self._second, 0.6))
        if self.heavy < 2 and self.has_channels and self.has_rows:
            options += [(self._norm, 1.6), (self._reduce, 1.6), (self._softmax, 0.6)]
            if self.has_space:
                options += [(self._pool, 1.2), (self._global, 0.7)]
            options.append((self._residual, 0.4))
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
        kind = self.rng.choice(("group", "group", "batch", "batch", "instance" if self.ndim else "layer"))
        if kind == "group":
            norms.group_norm(self.draft, features=self.features)
        elif kind == "batch":
            norms.batch_norm(self.draft, features=self.features, ndim=self.ndim)
        elif kind == "instance":
            if min(self.draft.shape[1][2:]) * len(self.draft.shape[1]) < 6 or max(self.draft.shape[0][2:]) < 2:
                raise UnsuitableError("the maps are too small for statistics")
            norms.instance_norm(self.draft, features=self.features, ndim=self.ndim)
        else:
            norms.layer_norm(self.draft, features=self.features)

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
        self.heavy += 1
        name = self.rng.choice(REDUCED)
        text = self.rng.choice(TORCH[name]).replace("{d}", "1").replace("{k}", ", keepdim=True")
        self.draft.steps.append(text)
        self.draft.op(name, f"{PHRASES[name]} over {'the channels' if self.ndim else 'each row'}")
        reduce(self.draft, name, "1", keepdim=True)
        self.has_channels = False

    def _pool(self) -> None:
        self.heavy += 1
        kernels = len(self.draft.kernels)
        pooling.pool_after(self.draft, self.ndim, self.rng.choice(("max", "avg")))
        assert len(self.draft.kernels) == kernels + 1

    def _global(self) -> None:
        """Append the mean over all positions of a channel."""
        self.heavy += 1
        draft, ndim = self.draft, self.ndim
        axes = tuple(range(2, 2 + ndim))
        if self.rng.random() < 0.35:
            layer = draft.free(self.rng.choice(("global_avg_pool", "avgpool", "gap")))
            ones = ", ".join(["1"] * ndim)
            draft.line(f"self.{layer} = nn.AdaptiveAvgPool{ndim}d({f'({ones})' if ndim > 1 else '1'})", is_kept=False)
            draft.steps.append(f"self.{layer}({{x}})")
        else:
            words = repr(self.rng.choice((axes, list(axes)))) if ndim > 1 else "2"
            draft.steps.append(
                self.rng.choice(
                    (f"torch.mean({{x}}, dim={words}, keepdim=True)", f"{{x}}.mean(dim={words}, keepdim=True)")
                )
            )
        draft.op("global_avg_pool", "global average pooling")
        start, other, loop, end, _ = rows.REDUCTIONS["mean"]
        source = draft.value
        ones = ", ".join(["1"] * ndim)
        rows.row_kernel(
            draft,
            "global_mean",
            "each program averages one channel of one sample",
            [start, *rows._looped(rows.load(other), *loop), *end],
            dim="",
            out=f"torch.empty(({source}.shape[0], {source}.shape[1], {ones}), device={{x}}.device, dtype={{x}}.dtype)",
            reduced=True,
            value="y",
            tail=["tl.store(out_ptr + o * I + i, y, mask=i < I)"],
            extents=[f"R, I = {source}[0, 0].numel(), 1"],
        )
        self.has_space, self.has_rows = False, False

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
