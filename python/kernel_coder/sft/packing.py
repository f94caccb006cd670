"""Divides examples between packed sequences, and makes the rows of tokens for forward passes.

Letters of the shape comments: T tokens of a forward pass, S examples in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernel_coder.sft.examples import Example

SEQUENCE_BUCKET = 32
"""The number of sequences in a :class:`Filled` pass is a multiple of this, so that few shapes occur."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The shape to which every forward pass is padded, so that a compiled model sees only one shape.

    Attributes:
        tokens: tokens of a pass.
        longest: tokens of the longest example of the run, on which the launch grid of the attention kernel depends.
        sequences: sequences of a pass, padding included; 0: a multiple of :data:`SEQUENCE_BUCKET`.
    """

    tokens: int
    longest: int
    sequences: int = 0

    @classmethod
    def of(cls, packs: Sequence[Sequence[int]], size: int, capacity: int) -> Filled:
        """Return the shape for passes over at most ``size`` of these packs.

        A pack is given by the lengths of its examples, whose sum is at most ``capacity`` tokens.

        >>> Filled.of([[30, 30], [60, 20, 20], [100]], size=2, capacity=100)
        Filled(tokens=200, longest=100, sequences=32)
        """
        tokens, longest = size * capacity, max(map(max, packs))
        most, emptiest = sorted(map(len, packs), reverse=True), sorted(map(sum, packs))
        of_some = [
            sum(most[:count]) + -((sum(emptiest[:count]) - tokens) // longest)
            for count in range(1, min(size, len(packs)) + 1)
        ]
        return cls(tokens, longest, max(of_some) + -max(of_some) % SEQUENCE_BUCKET)


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Divides examples between sequences of at most ``capacity`` tokens. Returns the indices in each sequence.

    The algorithm is best-fit decreasing: the longest example first, each into the fullest sequence that has room. It
    needs at most about 11/9 of the optimal number of sequences and O(n log n) comparisons.

    >>> best_fit([3, 7, 5, 2, 3], 10)
    [[1, 0], [2, 4, 3]]
    """
    packs: list[list[int]] = []
    free: list[tuple[int, int]] = []  # free tokens and index of each pack, sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > capacity:
            raise ValueError(f"an example of {length} tokens does not fit into a sequence of {capacity}")
        place = bisect_left(free, (length, -1))
        room, pack = free.pop(place) if place < len(free) else (capacity, len(packs))
        if pack == len(packs):
            packs.append([])
        packs[pack].append(index)
        insort(free, (room - length, pack))
    return packs


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """One forward pass. The hidden state in row t predicts token t + 1 of the same example."""

    ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]: position in the example, from 0
    targets: Tensor  # int64 [T]: the next token
    mask: Tensor  # bool [T], on the CPU: whether the target is in the loss; false in the last row of every example
    cu_seqlens: Tensor  # int32 [S + 1]: start of each example, and the end of the last
    longest: int  # tokens of the longest example, or more

    @property
    def num_targets(self) -> int:
        """Tokens in the loss."""
        return int(self.mask.sum())


def collate(examples: Sequence[Example], device: torch.device, *, filled: Filled | None = None) -> PackedBatch:
    """Puts the examples one after the other into a row.

    With ``filled``, the row is padded to that shape: with sequences that are not in the loss and are as long as the
    longest example, and with empty sequences up to ``filled.sequences`` (or, if there already are more, up to the next
    multiple of :data:`SEQUENCE_BUCKET`).
    """
    lengths = [len(example) for example in examples]
    ids = np.concatenate([example.ids for example in examples])
    in_loss = np.concatenate([example.in_loss for example in examples])
    longest = max(lengths) if filled is None else filled.longest
    if filled is not None and (missing := filled.tokens - len(ids)) > 0:
        lengths += [longest] * (missing // longest) + ([missing % longest] if missing % longest else [])
        ids, in_loss = np.pad(ids, (0, missing)), np.pad(in_loss, (0, missing))
    positions = np.concatenate([np.arange(length) for length in lengths])
    targets, mask = np.roll(ids, -1), np.roll(in_loss, -1)
    ends = np.cumsum(lengths)
    mask[ends - 1] = False
    if filled is not None:
        lengths += [0] * max(filled.sequences - len(lengths), -len(lengths) % SEQUENCE_BUCKET)

    def put(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device, non_blocking=True)

    return PackedBatch(
        ids=put(ids),
        positions=put(positions),
        targets=put(targets),
        mask=torch.from_numpy(mask),
        cu_seqlens=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32).to(device, non_blocking=True),
        longest=longest,
    )
