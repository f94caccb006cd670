"""From examples to forward passes: which examples share a sequence, and the one row of tokens that the model is given.

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
"""In a :class:`Filled` pass the number of sequences is rounded up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What every forward pass is filled up to, so that a compiled model meets one shape.

    Attributes:
        tokens: of a pass.
        longest: tokens of the longest example of the run, for which attention's grid is cut.
        sequences: no pass has more, those that fill it up included.
    """

    tokens: int
    longest: int
    sequences: int = 0

    @classmethod
    def of(cls, packs: Sequence[Sequence[int]], size: int, capacity: int) -> Filled:
        """For passes over any ``size`` of these packs, or fewer: lengths that are at most ``capacity`` together.

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
    """Indices that share a sequence of at most ``capacity`` tokens: the longest first, each where it fits best.

    Best-fit decreasing, which needs at most 11/9 of the sequences of the best packing; O(n log n) comparisons.

    >>> best_fit([3, 7, 5, 2, 3], 10)
    [[1, 0], [2, 4, 3]]
    """
    packs: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room left and the pack, sorted
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
    """One forward pass. Row t holds the hidden state that predicts token t + 1 of the same example."""

    ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]: from 0 in every example
    targets: Tensor  # int64 [T]: the next token
    mask: Tensor  # bool [T], on the CPU: whether the target is in the loss; false in the last row of every example
    cu_seqlens: Tensor  # int32 [S + 1]
    longest: int  # tokens of the longest example, or more

    @property
    def num_targets(self) -> int:
        return int(self.mask.sum())


def collate(examples: Sequence[Example], device: torch.device, *, filled: Filled | None = None) -> PackedBatch:
    """The examples one behind the other.

    A ``filled`` pass ends with sequences that are in no loss, as long as the longest of the run, and with empty ones up
    to ``filled.sequences``; with more than these, up to a multiple of :data:`SEQUENCE_BUCKET`.
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
