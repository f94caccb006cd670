"""Compare integers that a rounding error may change.

Some are places in a tensor, such as those of ``topk`` and ``argmax``. Two elements that are equal, or differ by a
rounding error, may come in either order. So a place is right if the number at it is the expected one.

Others are rounded numbers, such as quantized weights. Where the exact number lies between two integers, both are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.examiner.input_families import is_whole
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.wire.trees import floating, is_real, map_tensors, tensors_of

EQUAL_RTOL = 1e-5
"""Relative difference up to which two numbers count as equal. The rounding error of float32 is 1e-7, and the sorted
numbers may be results of a few operations."""

ZERO_NOISE = 1e-6
"""Standard deviation of the noise that replaces zeros, to see if an output depends on their order."""

MAX_ROUNDED_SHARE = 0.01
"""Upper limit of the share of an output's integers that a rounding error may change by one. If it changes more of them,
they are compared exactly."""

ROUNDING_TRIES = 4
"""Number of times that all inputs are moved, each time both ways, to find integers that a rounding error changes. A
single movement can by chance be too small for that, or equal to the movement of the number that it is divided by."""

TRIED_ORDERS = 3
"""Number of other orders of an input for which it is checked that places follow. One of them may agree by chance."""


class Rounded(NamedTuple):
    """The least and the largest integer that are right at each place of an output, as int64."""

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, output: Tensor) -> Rounded:
        """Return limits that only this output is within."""
        return cls(output.to(torch.int64), output.to(torch.int64))

    def same(self, output: Tensor, expected: Tensor) -> bool:
        """Return whether all integers are within these limits.

        >>> limits = Rounded(torch.tensor([1, 7]), torch.tensor([2, 7]))
        >>> [limits.same(torch.tensor(one), limits.low) for one in ([2, 7], [2, 8])]
        [True, False]
        """
        output = output.to(torch.int64)
        return bool(((output >= self.low) & (output <= self.high)).all())

    def widened(self, output: Tensor) -> Rounded:
        """Return limits that this output is within, too."""
        output = output.to(torch.int64)
        return Rounded(torch.minimum(self.low, output), torch.maximum(self.high, output))

    @property
    def are_close(self) -> bool:
        """Whether they differ by at most one, and in at most :data:`MAX_ROUNDED_SHARE` of the places.

        >>> zeros = torch.zeros(200, dtype=torch.int64)
        >>> [Rounded(zeros, zeros).widened(zeros.index_fill(0, torch.arange(n), 1)).are_close for n in (1, 3)]
        [True, False]
        """
        changed = self.high - self.low
        return int(changed.max()) <= 1 and float(changed.double().mean()) <= MAX_ROUNDED_SHARE


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
        if not bool(
            ((got - wanted).abs() <= EQUAL_RTOL * wanted.abs().clamp(min=1e-30)).logical_or(got == wanted).all()
        ):
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
    if places.is_floating_point() or places.dtype == torch.bool or places.numel() == 0 or int(places.min()) < 0:
        return None
    most = int(places.max())
    for source in sources:
        for dim in reversed(range(source.dim())):
            rest = [size for place, size in enumerate(source.shape) if place != dim]
            same = len(places.shape) == source.dim() and [s for i, s in enumerate(places.shape) if i != dim] == rest
            if source.shape[dim] > most and (same or list(places.shape) == rest):
                return Gathered(source, dim)
    return None


class PlaceFinder:
    """Finds the outputs of a reference that are integers which a rounding error of the inputs changes: places in a
    tensor, where it changes the order of nearly equal numbers, and rounded numbers."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.outputs: set[int] = set()
        """Numbers of the outputs that are places, as far as a sample has shown it."""

        self.is_by_order = False
        """Whether the reference chose between equal numbers by their order in the last sample. A softmax of large
        numbers has many zeros, for example: ``topk`` of it takes any of them."""

        self._follow: set[int] = set()  # outputs of places that follow the order of the task's own inputs
        self._own_are_whole: list[bool] | None = None
        """For each input, whether the task's own numbers are whole. Those of other families may be whole by chance."""

    def find(
        self, family: str, inputs: list[Any], cotangents: list[Tensor], exact: list[Tensor]
    ) -> list[Gathered | Rounded | None]:
        """Return how each output of a sample is compared; None: like a tensor of numbers.

        Args:
            family: family of the inputs.
            inputs: the sample's inputs.
            cotangents: gradients of the outputs; empty if gradients are not checked.
            exact: the expected outputs.
        """
        self.is_by_order = False
        if all(floating(one) or one.dtype == torch.bool for one in exact):
            return [None] * len(exact)
        if family == "own" or self._own_are_whole is None:
            self._own_are_whole = [is_whole(one) for one in tensors_of(inputs)]
        sources = [one for one in [*tensors_of(inputs), *exact] if floating(one)]
        found: list[Gathered | Rounded | None] = [None] * len(exact)
        for moves_zeros in (False, True):
            # Two equal numbers have one order if they are moved one way, and the opposite order the other way.
            ways = self._outputs_both_ways(inputs, cotangents, moves_zeros)
            for index, (a, b, like) in enumerate(zip(*ways, exact, strict=False)):
                if found[index] is None and not floating(a) and not torch.equal(a, b):
                    place = gathered_of(like, sources)
                    if place is not None and moves_zeros and place.source.shape == like.shape:
                        continue  # for example, the output is the sign of each input
                    is_close = a.shape == b.shape == like.shape and Rounded.of(like).widened(a).widened(b).are_close
                    if place is not None and is_close and not (place.same(a, like) and place.same(b, like)):
                        continue  # rounded numbers, which could be places by their size
                    found[index] = place
        self.outputs.update(index for index, place in enumerate(found) if place is not None)
        self._look_at_order(family, inputs, cotangents, exact)
        others = [index for index, place in enumerate(found) if place is None]
        for index, limits in self.rounded(others, inputs, cotangents, exact).items():
            found[index] = limits
        return found

    def _outputs_both_ways(
        self, inputs: list[Any], cotangents: list[Tensor], moves_zeros: bool
    ) -> Iterator[list[Tensor]]:
        """Yield the outputs for inputs that are moved by less than what counts as equal, one way and the other way."""
        assert self._own_are_whole is not None
        rng = self.reference.draws.rng
        noises = [torch.randn(one.shape, generator=rng, device=one.device) for one in tensors_of(inputs)]
        for sign in (1.0, -1.0):
            moved = _moved(inputs, noises, self._own_are_whole, sign, moves_zeros)
            yield self.reference.own_outputs(moved, cotangents)

    def rounded(
        self, indices: Sequence[int], inputs: list[Any], cotangents: list[Tensor], exact: list[Tensor]
    ) -> dict[int, Rounded]:
        """Return the limits of rounded numbers, by the output's number, if they are close.

        Args:
            indices: numbers of the outputs that are looked at. Those of floating-point numbers or bools are left out.
            inputs: the inputs of a call.
            cotangents: gradients of the outputs; empty if gradients are not checked.
            exact: the expected outputs.
        """
        limits = {
            index: Rounded.of(like)
            for index, like in ((index, exact[index]) for index in indices)
            if not floating(like) and like.dtype != torch.bool and like.numel()
        }
        for _ in range(ROUNDING_TRIES):
            if limits:
                for outputs in self._outputs_both_ways(inputs, cotangents, False):
                    limits = {index: one.widened(outputs[index]) for index, one in limits.items()}
                limits = {index: one for index, one in limits.items() if one.are_close}
        return limits

    def _look_at_order(self, family: str, inputs: list[Any], cotangents: list[Tensor], exact: list[Tensor]) -> None:
        """Set :attr:`is_by_order`: bring the input that an output has places in into another order, and see if the
        places follow."""
        given = [one for one in tensors_of(inputs) if floating(one)]
        for index, like in enumerate(exact):
            place = None if floating(like) else gathered_of(like, given)
            if place is None or (family != "own" and index not in self._follow):
                continue
            follows = all(self._follows(index, place, inputs, cotangents, like) for _ in range(TRIED_ORDERS))
            if family == "own" and follows:
                self._follow.add(index)
            self.is_by_order |= not follows and index in self._follow

    def _follows(self, index: int, place: Gathered, inputs: list[Any], cotangents: list[Tensor], like: Tensor) -> bool:
        """Return whether the places of an output follow a random order of the input that they are in."""
        rng, size = self.reference.draws.rng, place.source.shape[place.dim]
        order = torch.randperm(size, generator=rng, device=place.source.device)

        def ordered(one: Tensor) -> Tensor:
            return one.index_select(place.dim, order) if one is place.source else one.clone()

        made = self.reference.own_outputs(map_tensors(inputs, ordered), cotangents)[index].to(torch.int64)
        if bool(((made < 0) | (made >= size)).any()):
            return False
        return place.same(order[made], like)


def _moved(
    inputs: list[Any], noises: Sequence[Tensor], are_whole: Sequence[bool], sign: float, moves_zeros: bool
) -> list[Any]:
    """Return the inputs with each number moved by less than what counts as equal, and each zero too if asked for.
    Tensors of whole numbers, such as indices and masks, stay."""
    left = zip(noises, are_whole, strict=True)

    def move(one: Tensor) -> Tensor:
        noise, stays = next(left)
        if stays or not is_real(one):
            return one.clone()
        new = one * (1 + sign * EQUAL_RTOL / 4 * noise)
        return (torch.where(one == 0, sign * ZERO_NOISE * noise, new) if moves_zeros else new).to(one.dtype)

    return map_tensors(inputs, move)
