"""How far from exact an output may be.

``y`` is the float64 oracle's output. ``e`` is the largest absolute error of the reference in the task's own precision,
and ``r`` its relative error in the norm. Both errors are at least what the oracle's output moves by when each input
moves by a rounding error. A stable algorithm is exact for inputs that near; but the variance of a row of equal numbers,
for one, consists of rounding errors alone. ``eps`` is the spacing of the output's dtype at 1, or that of the task's
math mode:

    |x - y| <= K e + C eps (|y| + rms(y))     for every element
    |x - y|_2 / |y|_2 <= K r + N eps          for the output as a whole

The first bound lets an honest kernel sum in another order. It is relative to the size of the output, so that no
constant passes. The second bound catches a lower precision than the declared one, whose errors are each small enough,
but everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernel_coder.ops.compare import ComparisonResult

K = 8.0
"""Factor on the error of the reference: another order of summation may be a few times less exact."""

MARGINS = {  # of the output's dtype: C, N
    torch.float64: (4096.0, 1024.0),
    torch.float32: (64.0, 24.0),
    torch.float16: (2.0, 1.0),
    torch.bfloat16: (2.0, 1.0),
}
TF32_EPS = 2.0**-10
"""Spacing of TF32 at 1."""


@dataclass(frozen=True)
class Tolerance:
    """How far one output of one call may be from what is expected."""

    rtol: float
    atol: float
    relative: float
    """Bound of the relative error in the norm."""

    reference_error: float
    """Relative error of the reference in the norm."""

    def passes(self, result: ComparisonResult) -> bool:
        """Whether an output with this comparison is near enough."""
        return result.matches and result.relative_error <= self.relative


def of_output(dtype: torch.dtype, reference: ComparisonResult, shaken: ComparisonResult, precision: str) -> Tolerance:
    """The tolerance of an output.

    Args:
        dtype: of the output.
        reference: comparison of the reference's output with the oracle's.
        shaken: comparison of the oracle's output for shaken inputs with the oracle's for the inputs as they are.
        precision: of the task.

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
    finite = max(reference.elements - reference.nan_missing - reference.inf_missing, 1)
    rms = (reference.squared_expected / finite) ** 0.5
    error = max(_finite(reference.max_abs_error), _finite(shaken.max_abs_error))
    relative = max(_finite(reference.relative_error), _finite(shaken.relative_error))
    return Tolerance(
        rtol=wide * eps,
        atol=K * error + wide * eps * rms,
        relative=K * relative + norm * eps,
        reference_error=_finite(reference.relative_error),
    )


def _finite(error: float) -> float:
    return error if error < float("inf") else 0.0
