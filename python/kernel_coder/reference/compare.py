"""Reference for :func:`kernel_coder.ops.compare`."""

from __future__ import annotations

import cmath
import math
from typing import Any

import torch
from torch import Tensor

from kernel_coder.ops.compare import ComparisonResult


def compare(output: Tensor, expected: Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> ComparisonResult:
    """Compares one element after another in Python numbers: doubles, or integers of any size."""
    exact = not (output.is_floating_point() or output.is_complex())
    tiny = 1.0 if exact else torch.finfo(output.dtype).smallest_normal
    mismatches = nan_added = nan_missing = inf_added = inf_missing = 0
    found: list[Any] = [None, None, None]
    errors, relative_errors, sizes = [0.0], [0.0], [0.0]
    pairs = zip(output.flatten().tolist(), expected.flatten().tolist(), strict=True)
    for index, (x, y) in enumerate(pairs):
        if x == y or (cmath.isnan(x) and cmath.isnan(y)):
            error = 0.0
        elif cmath.isfinite(x) and cmath.isfinite(y):
            error = float(abs(x - y))
        else:
            error = math.inf
        size = float(abs(y)) if cmath.isfinite(y) else math.inf
        errors.append(error)
        relative_errors.append(error / max(size, tiny) if error < math.inf else error)
        sizes.append(size if size < math.inf else 0.0)
        tolerance = atol + rtol * size if size < math.inf else 0.0
        if error <= (0.0 if exact else tolerance) and error < math.inf:
            continue
        mismatches += 1
        nan_added += cmath.isnan(x)
        nan_missing += cmath.isnan(y)
        if not cmath.isnan(x) and not cmath.isnan(y):
            inf_added += cmath.isinf(x)
            inf_missing += cmath.isinf(y) and not cmath.isinf(x)
        if found[0] is None:
            found = [index, int(x), int(y)] if exact else [index, x, y]
    counts = [output.numel(), mismatches, nan_added, nan_missing, inf_added, inf_missing]
    sums = [sum(e * e for e in errors), sum(s * s for s in sizes)]
    return ComparisonResult._make([*counts, *found, max(errors), max(relative_errors), *sums])
