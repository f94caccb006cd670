"""Which side of the split a task is on. These rules and names are for good: a change would leak held-out tasks.

- Families in :data:`HELDOUT_FAMILIES` are never trained on: ``heldout_family``.
- Of the others, the compositions whose SHA-256 falls in one of every :data:`SHARE` parts are ``heldout_composition``,
  whatever the family, shapes, constants and spelling: ``scale, relu`` is held out everywhere or nowhere.
- All else is ``train``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

Split = Literal["train", "heldout_composition", "heldout_family"]
SPLITS: tuple[Split, ...] = ("train", "heldout_composition", "heldout_family")

HELDOUT_FAMILIES = frozenset({"normalize", "distance", "conv1d"})
"""Each can be put together from what the training families teach: row reductions, and conv2d."""

SHARE = 8


def split_of_composition(family: str, composition: Sequence[str]) -> Split:
    """The side of a family's composition.

    >>> split_of_composition("distance", ["relu", "dot"])
    'heldout_family'
    >>> {split_of_composition(family, ["scale", "relu"]) for family in ("elementwise", "activation")}
    {'train'}
    """
    if family in HELDOUT_FAMILIES:
        return "heldout_family"
    digest = hashlib.sha256("\n".join(composition).encode()).digest()
    return "heldout_composition" if int.from_bytes(digest[:8], "big") % SHARE == 0 else "train"
