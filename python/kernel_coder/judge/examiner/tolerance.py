"""The tolerance: how far from exact an output may be.

``y`` is the float64 oracle's output. ``e`` is the largest absolute error of the reference in the task's own precision,
and ``r`` its relative error in the norm. If the oracle's output changes by more than ``e`` or ``r`` when each input
changes by a rounding error, that change is used instead: a stable algorithm gives the exact result for inputs that are
off by a rounding error, and some results, such as the variance of equal numbers, consist of rounding errors only.
``eps`` is the spacing of the output's dtype at 1, or that of the task's math mode:

    |x - y| <= K e + C eps (|y| + rms(y))     for every element
    |x - y|_2 / |y|_2 <= K r + N eps          for the output as a whole

The first bound lets an honest kernel sum in another order. It is relative to the size of the output, so that no
constant passes. The second bound catches a lower precision than the declared one: each of its errors may be small
enough, but all elements have one.

In an output with very large and very small elements the first bound permits any value for the small ones. So
:class:`Magnitudes` lowers its absolute part for elements of each binary exponent, as far as the reference's own error
is smaller there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.wire.trees import is_real
from kernel_coder.ops.compare import ComparisonResult

K = 8.0
"""Factor on the error of the reference: another order of summation may be a few times less exact."""

MARGINS = {  # C and N by the output's dtype
    torch.float64: (4096.0, 1024.0),
    torch.float32: (64.0, 24.0),
    torch.float16: (2.0, 1.0),
    torch.bfloat16: (2.0, 1.0),
}

K_BFLOAT16 = 2.5
"""The same factor for outputs in bfloat16. It is smaller, so that weights in eight bits, which move a result by about
three times its rounding error, do not pass."""

MIN_AVERAGED_ELEMENTS = 256
"""Number of elements of a bfloat16 output from which on its relative error is a good average, so that a margin of a
quarter of eps suffices. With fewer elements, each may by chance be rounded the other way."""

TINY_ROUNDINGS, TINY_SHARE = 4.0, 0.01
"""On tiny inputs an output may be off by four rounding errors of the task's own output, but at most by a hundredth of
itself. This holds for tasks whose output is not proportional to the scale of the input, such as ELU computed as exp(x)
- 1 and tanh computed as 2 sigmoid(2 x) - 1."""

TF32_EPS = 2.0**-10
"""Spacing of TF32 at 1."""


@dataclass(frozen=True)
class Tolerance:
    """How far one output of one call may be from the expected one."""

    rtol: float
    atol: float
    relative: float
    """Upper limit of the relative error in the norm."""

    reference_error: float
    """Relative error of the reference in the norm."""

    def passes(self, result: ComparisonResult) -> bool:
        """Return whether an output with this comparison is within the tolerance."""
        return result.matches and result.relative_error <= self.relative


def of_output(dtype: torch.dtype, reference: ComparisonResult, shaken: ComparisonResult, precision: str) -> Tolerance:
    """Return the tolerance of an output.

    Args:
        dtype: dtype of the output.
        reference: comparison of the reference's output with the oracle's.
        shaken: comparison of the oracle's output for shaken inputs with its output for the inputs themselves.
        precision: the task's precision.

    >>> from kernel_coder import ops
    >>> y = torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> same = ops.compare(y.float(), y).read()
    >>> tolerance = of_output(torch.float32, same, same, "fp32")
    >>> f"{tolerance.rtol:.2g} {tolerance.atol:.2g} {tolerance.relative:.2g}"
    '7.6e-06 7.6e-06 2.9e-06'
    """
    if not dtype.is_floating_point and not dtype.is_complex:
        return Tolerance(0.0, 0.0, 0.0, 0.0)
    kind = dtype if dtype.is_floating_point else torch.float32 if dtype == torch.complex64 else torch.float64
    wide, norm = MARGINS[kind]
    eps = torch.finfo(kind).eps
    if precision == "tf32" and kind == torch.float32:
        eps, wide, norm = TF32_EPS, 2.0, 1.0
    rms = rms_of(reference)
    error = max(_finite(reference.max_abs_error), _finite(shaken.max_abs_error))
    relative = max(_finite(reference.relative_error), _finite(shaken.relative_error))
    factor = K_BFLOAT16 if kind == torch.bfloat16 else K
    bound = factor * relative + norm * eps
    if kind == torch.bfloat16 and reference.elements >= MIN_AVERAGED_ELEMENTS:
        bound = max(factor * relative, eps / 4)
    return Tolerance(
        rtol=wide * eps,
        atol=factor * error + wide * eps * rms,
        relative=bound,
        reference_error=_finite(reference.relative_error),
    )


def rms_of(result: ComparisonResult) -> float:
    """Return the root mean square of the finite elements that were expected."""
    finite = max(result.elements - result.nan_missing - result.inf_missing, 1)
    return math.sqrt(result.squared_expected / finite)


def widened_for_tiny(tolerance: Tolerance, dtype: torch.dtype, rms: float, own_rms: float) -> Tolerance:
    """Return the tolerance of an output on tiny inputs, for a task whose outputs are not proportional to the inputs.

    Args:
        tolerance: the tolerance before it is widened.
        dtype: dtype of the output.
        rms: root mean square of the output.
        own_rms: root mean square of the output for the task's own inputs.

    >>> strict = Tolerance(rtol=0.0, atol=1e-9, relative=1e-6, reference_error=0.0)
    >>> widened_for_tiny(strict, torch.float32, 1e-4, 1.0).atol > 2e-7
    True
    """
    if not dtype.is_floating_point or rms == 0:
        return tolerance
    slack = min(TINY_ROUNDINGS * torch.finfo(dtype).eps * own_rms, TINY_SHARE * rms)
    return replace(tolerance, atol=tolerance.atol + slack, relative=tolerance.relative + slack / rms)


LARGEST_SLACK = 0.05
"""Upper limit of the result of :func:`slack_for_large`."""


def slack_for_large(inputs: Sequence[Tensor]) -> float:
    """Return an additional relative error that is allowed on inputs with large elements, for a task whose outputs are
    not proportional to the inputs.

    It is the rounding error of the largest element. A softmax that is computed as exp(x - logsumexp(x)) has this error,
    because the difference of two numbers of that size is off by as much. The errors of the reference and of shaken
    inputs do not show it: both are exact where one element outweighs all others.

    >>> f"{slack_for_large([torch.tensor([1.0, -1000.0])]):.2g}"
    '0.00012'
    """
    sizes = [
        torch.finfo(torch.float64 if one.dtype == torch.float64 else torch.float32).eps * _largest(one)
        for one in inputs
        if is_real(one) and one.numel()
    ]
    return min(max((one for one in sizes if math.isfinite(one)), default=0.0), LARGEST_SLACK)


def _largest(tensor: Tensor) -> float:
    """Return the largest magnitude, without a copy of the tensor."""
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high))


ABLATION_SHARE = 0.1
"""Upper limit of the absolute part of a tolerance in an ablation, as a share of the expected elements' median
magnitude. With it, random numbers are wrong nearly everywhere, even if a few huge elements make the tolerance wide."""


def narrowed_for_ablation(tolerance: Tolerance, expected: Tensor) -> Tolerance:
    """Return the tolerance for comparing an output while the candidate's own kernels do nothing.

    >>> wide = Tolerance(rtol=0.0, atol=5.0, relative=1e-6, reference_error=0.0)
    >>> narrowed_for_ablation(wide, torch.tensor([0.0, 1.0, 2.0, 1e6])).atol
    0.2
    """
    if not expected.is_floating_point():
        return tolerance
    sizes = expected.flatten()[places_of(expected)].abs()
    sizes = sizes[(sizes > 0) & sizes.isfinite()]
    if not len(sizes):
        return tolerance
    return replace(tolerance, atol=min(tolerance.atol, ABLATION_SHARE * float(sizes.median())))


# ---- small elements of outputs with large ones

SAMPLED = 1 << 16
"""Upper limit of the elements of an output that are compared by magnitude. It limits time and memory."""

MIN_POOLED_ELEMENTS = 64
"""Minimum number of elements that the reference's error at a magnitude is taken from, because a few may be exact by
chance. That error is the largest one among all elements up to this magnitude."""

SMALL_ROUNDINGS = 4.0
"""Small elements may be off by this many rounding errors of the median element. An intermediate value may be as large
as the median: tanh(x) = 2 sigmoid(2 x) - 1 has a rounding error of 1 where it is nearly 0."""

MAGNITUDE_SLACK = 4.0
"""The absolute part of a tolerance is lowered for a magnitude to this many times the share that the reference's error
there has in its error for the whole output."""

MAX_OFF_SHARE = 1e-4
"""Upper limit of the share of an output's elements that may be off by more than their magnitude allows. Among small
elements a few can have larger errors than the others, such as x * hardswish(x) near -3, where a rounding error of x
counts for more than near 0. Which ones these are differs from one correct kernel to the next."""

EXPONENTS = 1100
"""Tables have an entry for each binary exponent from minus this to plus this. That covers float64."""


class Magnitudes(NamedTuple):
    """The share of the absolute tolerance that holds for elements of each binary exponent."""

    factors: Tensor
    """One factor for each exponent, from -EXPONENTS on; at most 1."""

    least: Tensor
    """A number: absolute error that elements of every magnitude may have."""

    def wrong(self, output: Tensor, expected: Tensor, tolerance: Tolerance, places: Tensor) -> Tensor:
        """Return, as a tensor, how many of the elements at some places are further from the expected ones than their
        magnitude allows. Elements that should be zero or are not finite are left out."""
        x, y = (one.reshape(-1)[places].double() for one in (output, expected))
        seen = (y != 0) & y.isfinite()
        absolute = torch.maximum(self.factors[_exponents(y)] * tolerance.atol, self.least)
        allowed = absolute + tolerance.rtol * y.abs()
        return (seen & ~((x - y).abs() <= allowed)).sum()


def magnitudes_of(expected: Tensor, errors: Tensor, is_double: bool = False) -> Magnitudes:
    """Compute the factors from some elements and the reference's errors at them.

    Args:
        expected: these elements, in float64.
        errors: absolute errors of the same elements.
        is_double: whether the task computes in float64.

    >>> expected = torch.logspace(-9, 3, 600, dtype=torch.float64)
    >>> relative = magnitudes_of(expected, 1e-7 * expected)
    >>> even = magnitudes_of(expected, torch.full_like(expected, 1e-7))
    >>> small, allowed = torch.tensor([1e-6], dtype=torch.float64), Tolerance(0.0, 1e-3, 1.0, 0.0)
    >>> place = torch.zeros(1, dtype=torch.int64)
    >>> [int(one.wrong(small * 0, small, allowed, place)) for one in (relative, even)]
    [1, 0]
    """
    seen = (expected != 0) & expected.isfinite() & errors.isfinite()
    y, e = expected[seen].abs(), errors[seen]
    eps = torch.finfo(torch.float64 if is_double else torch.float32).eps
    least = SMALL_ROUNDINGS * eps * (y.median() if len(y) else y.new_zeros(()))
    ones = torch.ones(2 * EXPONENTS + 1, dtype=torch.float64, device=expected.device)
    if len(y) <= MIN_POOLED_ELEMENTS:
        return Magnitudes(ones, least)
    y, order = y.sort()
    most = e[order].cummax(0).values
    exponents = torch.arange(2 * EXPONENTS + 1, device=y.device)
    ranks = torch.searchsorted(_exponents(y), exponents, right=True) + MIN_POOLED_ELEMENTS - 1
    there = most[ranks.clamp_(max=len(y) - 1)]
    return Magnitudes(torch.where(most[-1] > 0, (MAGNITUDE_SLACK * there / most[-1]).clamp_(max=1.0), ones), least)


def places_of(output: Tensor) -> Tensor:
    """Return the places of at most :data:`SAMPLED` elements of an output, drawn at random if it has more."""
    count = output.numel()
    if count <= SAMPLED:
        return torch.arange(count, device=output.device)
    return torch.randint(count, (SAMPLED,), device=output.device)


def _exponents(numbers: Tensor) -> Tensor:
    """Return the indices of the numbers' binary exponents in the table."""
    return torch.frexp(numbers).exponent.clamp(-EXPONENTS, EXPONENTS).to(torch.int64) + EXPONENTS


def _finite(error: float) -> float:
    return error if error < float("inf") else 0.0
