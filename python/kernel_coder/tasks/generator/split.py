"""The split to which a task belongs. These rules and names must not change: a change would leak held-out tasks.

- Families in :data:`HELDOUT_FAMILIES` are never trained on: ``heldout_family``.
- Of the others, the compositions whose SHA-256 falls in one of every :data:`SHARE` parts are ``heldout_composition``,
  whatever the family, shapes, constants and spelling: ``scale, relu`` is held out everywhere or nowhere.
- Of the family ``repository``, single operations are never held out by their hash, since each would be missing from
  training altogether. Instead the operations in :data:`HELDOUT_OPERATIONS` are held out, alone and in chains:
  ``heldout_operation``. Those in :data:`HELDOUT_KINDS` are the held-out families of that generator.
- All other tasks are ``train``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

Split = Literal["train", "heldout_composition", "heldout_family", "heldout_operation"]
SPLITS: tuple[Split, ...] = ("train", "heldout_composition", "heldout_family", "heldout_operation")

HELDOUT_FAMILIES = frozenset({"normalize", "distance", "conv1d"})
"""The held-out families. Each can be composed from what the training families teach: row reductions, and conv2d."""

REPOSITORY = "repository"

HELDOUT_OPERATIONS = frozenset({
    "argmin", "cumsum_reverse", "avg_pool1d", "matmul_at_bt", "hardsigmoid",  # in KernelBench
    "log_cosh_loss", "tanhshrink", "std", "outer", "max_normalize",  # not in KernelBench
})  # fmt: skip
"""The held-out operations. A similar one to each is trained on: argmax, cumsum, avg_pool2d, matmul_at, hardswish,
..."""

HELDOUT_KINDS = frozenset({"glu", "swiglu", "reglu", "cosine_loss", "cosine_similarity"})
"""Gated units and cosine similarity: families of the generator ``repository`` that training never sees."""

SHARE = 8


def split_of_composition(family: str, composition: Sequence[str]) -> Split:
    """Return the split of a family's composition.

    >>> split_of_composition("distance", ["relu", "dot"])
    'heldout_family'
    >>> {split_of_composition(family, ["scale", "relu"]) for family in ("elementwise", "activation")}
    {'train'}
    >>> split_of_composition("repository", ["conv2d", "hardsigmoid"]), split_of_composition("repository", ["relu"])
    ('heldout_operation', 'train')
    """
    if family == REPOSITORY:
        if HELDOUT_OPERATIONS & set(composition):
            return "heldout_operation"
        if HELDOUT_KINDS & set(composition):
            return "heldout_family"
        if len(composition) == 1:
            return "train"
    if family in HELDOUT_FAMILIES:
        return "heldout_family"
    digest = hashlib.sha256("\n".join(composition).encode()).digest()
    return "heldout_composition" if int.from_bytes(digest[:8], "big") % SHARE == 0 else "train"
