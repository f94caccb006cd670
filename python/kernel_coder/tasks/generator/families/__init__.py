"""The families: each fills a sketch at a level from 0 to 4."""

from __future__ import annotations

from collections.abc import Callable

from kernel_coder.tasks.generator.families import (
    indexing,
    losses,
    pointwise,
    products,
    rowwise,
    windows,
)
from kernel_coder.tasks.generator.ordinary import ordinary
from kernel_coder.tasks.generator.repository import repository
from kernel_coder.tasks.generator.sketch import Sketch

FAMILIES: dict[str, Callable[[Sketch], None]] = {
    "elementwise": pointwise.elementwise,
    "activation": pointwise.activation,
    "broadcast": pointwise.broadcast,
    "residual": pointwise.residual,
    "reduction": rowwise.reduction,
    "softmax": rowwise.softmax,
    "layer_norm": rowwise.layer_norm,
    "rms_norm": rowwise.rms_norm,
    "group_norm": rowwise.group_norm,
    "normalize": rowwise.normalize,
    "cumulative": rowwise.cumulative,
    "distance": rowwise.distance,
    "linear": products.linear,
    "matmul": products.matmul,
    "bmm": products.bmm,
    "attention": products.attention,
    "pooling": windows.pooling,
    "conv1d": windows.conv1d,
    "conv2d": windows.conv2d,
    "loss": losses.loss,
    "gather": indexing.gather,
    "transpose": indexing.transpose,
    "masking": indexing.masking,
}
"""The families from which a seed chooses if none is named."""

ALL_FAMILIES: dict[str, Callable[[Sketch], None]] = {**FAMILIES, "ordinary": ordinary, "repository": repository}
"""Every family that can be named. A seed without a family never gives ``ordinary`` or ``repository``, which are newer,
so that its texts stay the same."""
