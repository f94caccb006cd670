"""Compare integers that are places in a tensor, such as those of ``topk`` and ``argmax``, by the numbers at these
places.

Two elements that are equal, or differ by a rounding error, may come in either order. So a place is right if the number
at it is the expected one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NEARLY = 1e-5
"""Relative difference up to which two numbers count as equal. The rounding error of float32 is 1e-7, and the sorted
numbers may be results of a few operations."""


class Gathered(NamedTuple):
    """A tensor that integers are places in, and the dimension along which they are."""

    source: Tensor
    dim: int

    def same(self, output: Tensor, expected: Tensor) -> bool:
        """Return whether two tensors of places point to the same numbers and repeat no more of them than expected.

        >>> x = torch.tensor([[3.0, 1.0, 3.0]])
        >>> places = Gathered(x, 1)
        >>> [places.same(torch.tensor([one]), torch.tensor([[0, 2]])) for one in ([2, 0], [0, 0], [0, 1], [0, 7])]
        [True, False, False, False]
        """
        keeps = output.dim() == self.source.dim()
        output, expected = (one.to(torch.int64) for one in (output, expected))
        if bool(((output < 0) | (output >= self.source.shape[self.dim])).any()):
            return False
        if not keeps:
            output, expected = output.unsqueeze(self.dim), expected.unsqueeze(self.dim)
        got, wanted = (self.source.gather(self.dim, one).double() for one in (output, expected))
        if not bool(((got - wanted).abs() <= NEARLY * wanted.abs().clamp(min=1e-30)).logical_or(got == wanted).all()):
            return False
        counts = [_repeats(one, self.dim) for one in (output, expected)]
        return counts[0] <= counts[1]


def _repeats(places: Tensor, dim: int) -> int:
    """Return how many places are repetitions of another one."""
    ordered = places.sort(dim=dim).values.movedim(dim, -1)
    return int((ordered[..., 1:] == ordered[..., :-1]).sum())


def gathered_of(places: Tensor, sources: Sequence[Tensor]) -> Gathered | None:
    """Return the first tensor that these integers can be places in, and the dimension; None if there is none.

    >>> found = gathered_of(torch.tensor([[4, 0]]), [torch.rand(3), torch.rand(1, 5)])
    >>> tuple(found.source.shape), found.dim
    ((1, 5), 1)
    """
    if places.is_floating_point() or places.dtype == torch.bool or places.numel() == 0:
        return None
    most = int(places.max())
    for source in sources:
        for dim in reversed(range(source.dim())):
            rest = [size for place, size in enumerate(source.shape) if place != dim]
            same = len(places.shape) == source.dim() and [s for i, s in enumerate(places.shape) if i != dim] == rest
            if source.shape[dim] > most and (same or list(places.shape) == rest):
                return Gathered(source, dim)
    return None
