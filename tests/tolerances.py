"""The largest error of an op against its float64 reference: one number per dtype, relative to the result's norm.

A bound must be able to fail: test_tolerances.py checks that a slightly larger error is refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Largest norm(x - reference) / norm(reference).
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def relative_error(x: Tensor, reference: Tensor) -> float:
    """``norm(x - reference) / norm(reference)`` in float64; 0 if both are 0, infinite if only the reference is."""
    reference = reference.detach().double()
    error = (x.detach().double() - reference).norm()
    scale = reference.norm()
    if scale == 0:
        return 0.0 if error == 0 else float("inf")
    return float(error / scale)


def assert_close(x: Tensor, reference: Tensor, *, dtype: torch.dtype | None = None, slack: float = 1.0) -> None:
    """x agrees with the float64 reference to the tolerance of its dtype (or of ``dtype``, which it was computed in)."""
    assert x.shape == reference.shape, f"shape {list(x.shape)} instead of {list(reference.shape)}"
    assert bool((x.isfinite() == reference.isfinite()).all()), "finite in one and not in the other"
    error, bound = relative_error(x, reference), slack * TOLERANCE[dtype or x.dtype]
    assert error <= bound, f"relative error {error:.3g} above {bound:.3g}"
