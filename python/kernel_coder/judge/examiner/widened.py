"""Computing in float64: where a module's code names a narrower dtype, and without cuDNN."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.wire.operator_mode import OperatorMode
from kernel_coder.judge.wire.trees import floating

NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes that are replaced by float64. Numbers of 8 bits are not among them: a conversion to these is part of what a
module computes, as in quantization."""

NAMES_16_BITS = re.compile(r"\b(bfloat16|float16|half)\b")
"""Words by which a source asks for 16 bits."""


class Widened(OperatorMode):
    """Every operator that is told to return float32, float16 or bfloat16 returns float64 in this block.

    A reference may convert its inputs to bfloat16 itself. Its copy in float64 would do the same, so it would be no more
    exact than the reference, and a candidate that rounds less often would seem to be wrong.

    >>> x = torch.tensor([1.001], dtype=torch.float64)
    >>> with Widened():
    ...     float(x.to(torch.bfloat16)), torch.zeros(1, dtype=torch.float16).dtype
    (1.001, torch.float64)
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("dtype") in NARROW:
            given["dtype"] = torch.float64
        return func(*args, **given)


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Compute convolutions without cuDNN in this block.

    In float64, torch's own convolutions are matrix products. On an H200 they are up to 17 times as fast as cuDNN's
    (``benchmarks/results/oracle_cuda.csv``). They take more memory.

    >>> with without_cudnn():
    ...     torch.backends.cudnn.enabled
    False
    """
    was_enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = was_enabled


def doubled(tensor: Tensor) -> Tensor:
    """Return a copy, in double precision unless it holds integers or bools.

    >>> doubled(torch.ones(1)).dtype, doubled(torch.ones(1, dtype=torch.int32)).dtype
    (torch.float64, torch.int32)
    """
    if not floating(tensor):
        return tensor.clone()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64, copy=True)
