"""Comparison of an output with the expected one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.ops._errors import checked


class ComparisonResult(NamedTuple):
    """The numbers of a comparison; :func:`compare` explains each of them.

    >>> result = compare(torch.tensor([1.0, 3.0, float("nan")]), torch.tensor([1.0, 2.0, 4.0])).read()
    >>> result.mismatches, result.nan_added, result.first, result.got, result.expected
    (2, 1, 1, 3.0, 2.0)
    """

    elements: int
    mismatches: int
    nan_added: int
    nan_missing: int
    inf_added: int
    inf_missing: int
    first: int | None
    got: int | float | complex | None
    expected: int | float | complex | None
    max_abs_error: float
    max_rel_error: float
    squared_error: float
    squared_expected: float

    @property
    def matches(self) -> bool:
        """Whether every element matches."""
        return self.mismatches == 0

    @property
    def relative_error(self) -> float:
        """``norm(output - expected) / norm(expected)``: 0 if both norms are 0; infinite if only the second one is 0, or
        if a norm is not finite."""
        if self.squared_error == 0:
            return 0.0
        if not (math.isfinite(self.squared_error) and 0 < self.squared_expected < math.inf):
            return math.inf
        return math.sqrt(self.squared_error) / math.sqrt(self.squared_expected)

    def without_errors(self) -> ComparisonResult:
        """Return what a comparison of the expected tensor with itself would give, for an output that is right although
        elements differ: places of equal numbers in another order, for example.

        >>> compare(torch.tensor([1, 0]), torch.tensor([0, 1])).read().without_errors().matches
        True
        """
        return self._replace(
            mismatches=0,
            nan_added=0,
            nan_missing=0,
            inf_added=0,
            inf_missing=0,
            first=None,
            got=None,
            expected=None,
            max_abs_error=0.0,
            max_rel_error=0.0,
            squared_error=0.0,
        )


class Comparison(NamedTuple):
    """A comparison that the device may not have finished yet.

    Attributes:
        packed: float64 ``[16]`` on the device of the tensors, as the op leaves it.
    """

    packed: Tensor

    def read(self) -> ComparisonResult:
        """Wait for the device and fetch the numbers, in one transfer."""
        return read_comparisons([self])[0]


def read_comparisons(comparisons: Sequence[Comparison]) -> list[ComparisonResult]:
    """Return the numbers of several comparisons made on one device, in one transfer.

    >>> a, b = torch.zeros(2), torch.tensor([0.0, 1.0])
    >>> [result.mismatches for result in read_comparisons([compare(a, a), compare(a, b)])]
    [0, 1]
    """
    if not comparisons:
        return []
    return [_unpacked(row) for row in torch.stack([one.packed for one in comparisons]).tolist()]


def _unpacked(row: Sequence[float]) -> ComparisonResult:
    numbers = dict(zip(_C.COMPARISON_FIELDS, row, strict=True))
    kind = _C.ELEMENT_KINDS[int(numbers["kind"])]
    place = int(numbers["first"])

    def count(name: str) -> int:
        return int(numbers[name])

    return ComparisonResult(
        elements=count("elements"),
        mismatches=count("mismatches"),
        nan_added=count("nan_added"),
        nan_missing=count("nan_missing"),
        inf_added=count("inf_added"),
        inf_missing=count("inf_missing"),
        first=place if place >= 0 else None,
        got=_element(kind, numbers["got"], numbers["got_2"]) if place >= 0 else None,
        expected=_element(kind, numbers["expected"], numbers["expected_2"]) if place >= 0 else None,
        max_abs_error=numbers["max_abs_error"],
        max_rel_error=numbers["max_rel_error"],
        squared_error=numbers["squared_error"],
        squared_expected=numbers["squared_expected"],
    )


def _element(kind: str, first: float, second: float) -> int | float | complex:
    """Return an element from its two numbers: an integer is their sum, since a float64 holds no int64."""
    if kind == "real":
        return first
    return complex(first, second) if kind == "complex" else int(first) + int(second)


@checked
def compare(output: Tensor, expected: Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> Comparison:
    """Compare every element of an output with the expected one, in one pass without temporary tensors.

    With ``x`` and ``y`` an element of the output and the expected one, both in float64 (integers: exactly), its error
    is ``|x - y|``. It is 0 for two NaNs and for two equal infinities, and infinite where only one of the two is finite
    or NaN, so that the largest error is never small for an output that is not a number. An element matches if its error
    is finite and at most ``atol + rtol |y|``. A complex number is NaN if one of its parts is.

    ================  ================================================================================================
    elements          their number
    mismatches        elements that do not match
    nan_added         of these, those where the output is NaN and ``y`` is not
    nan_missing       ... where ``y`` is NaN and the output is not
    inf_added         ... where the output is infinite and ``y`` is finite or another infinity
    inf_missing       ... where ``y`` is infinite and the output is finite
    first             index of the first mismatch in row-major order; None if all match
    got, expected     the element there
    max_abs_error     largest error
    max_rel_error     largest ``error / max(|y|, tiny)``; tiny is the smallest normal number of the output's dtype
    .                 (1 for integers)
    squared_error     sum of ``error^2``
    squared_expected  sum of ``|y|^2`` over finite ``y``
    ================  ================================================================================================

    Args:
        output: float16, bfloat16, float32, float64, complex64, complex128, bool, uint8 or an int of 8 to 64 bits, any
            shape and strides, CPU or CUDA.
        expected: of the same shape, on the same device. For a floating-point output any floating-point dtype, such as
            a float64 oracle; for a complex output a complex one; for bool and integers the same dtype.
        rtol: relative tolerance. Bools and integers have to be equal, whatever the tolerances.
        atol: absolute tolerance.

    Returns:
        The comparison, without waiting for the device; ``read()`` does. Not differentiable. The same bits every time,
        with every number of threads. Memory beside the inputs does not grow with them.

    Raises:
        ValueError: shapes or devices that differ, dtypes that cannot be compared, a tolerance that is negative or not
            finite, or strided tensors of more than 16 dimensions that cannot be merged.

    >>> result = compare(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]).double(), rtol=0.1).read()
    >>> result.matches, result.first, result.got, result.expected, result.max_abs_error, result.max_rel_error
    (False, 1, 2.5, 2.0, 0.5, 0.25)
    """
    return Comparison(_C.compare(output.detach(), expected.detach(), rtol, atol))


@torch.library.register_fake("kernel_coder::compare")
def _(output: Tensor, expected: Tensor, rtol: float, atol: float) -> Tensor:
    return output.new_empty((len(_C.COMPARISON_FIELDS),), dtype=torch.float64)
