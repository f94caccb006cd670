"""Reference for :func:`kernel_coder.ops.sequence_similarity` and :func:`kernel_coder.ops.sequence_similarities`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import torch
from torch import Tensor


def sequence_similarity(a: str, b: str, *, autojunk: bool = False) -> float:
    """Return the ratio of ``difflib.SequenceMatcher``."""
    return difflib.SequenceMatcher(None, a, b, autojunk).ratio()


def sequence_similarities(
    a: Sequence[str], b: Sequence[str], *, autojunk: bool = False, threads: int | None = None
) -> Tensor:
    """Return :func:`sequence_similarity` of each pair."""
    ratios = [sequence_similarity(x, y, autojunk=autojunk) for x, y in zip(a, b, strict=True)]
    return torch.tensor(ratios, dtype=torch.float64)
