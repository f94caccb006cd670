"""A speedup and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from kernel_coder.judge.examiner.timing_constants import RESOLUTION

CONFIDENCE = 0.99
"""Of the intervals of speedups."""


class Interval(NamedTuple):
    """A median and its confidence interval."""

    median: float
    low: float
    high: float


def order_of_bound(count: int, confidence: float = CONFIDENCE) -> int:
    """Index of the lower bound of a median's interval in `count` sorted values. It is 0 if even the interval from the
    least to the most value has less than this confidence.

    The number of values below the median is binomial(count, 1/2), so the values at index k and count - 1 - k enclose it
    with probability 1 - 2 P(fewer than k + 1 below). Source: any text on order statistics.

    >>> [order_of_bound(count) for count in (5, 10, 20, 100)]
    [0, 0, 3, 36]
    """
    tail, below = (1 - confidence) / 2, 0.0
    for k in range(count):
        below += math.comb(count, k) * 0.5**count
        if below > tail:
            return max(k - 1, 0)
    return 0


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of independent measurements and its distribution-free confidence interval.

    >>> median_interval([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 5.0])
    Interval(median=1.0, low=0.9, high=5.0)
    """
    if not values:
        raise ValueError("a median needs at least one value; got none")
    ordered = sorted(values)
    k = order_of_bound(len(ordered), confidence)
    return Interval(statistics.median(ordered), ordered[k], ordered[-1 - k])


def noise_of(values: Sequence[float]) -> float:
    """Relative difference between the medians of the even and of the odd measurements; at least RESOLUTION.

    >>> noise_of([1.0, 1.02] * 10), noise_of([1.0, 1.0])
    (0.02, 0.005)
    """
    even, odd = statistics.median(values[::2]), statistics.median(values[1::2] or values)
    return max(RESOLUTION, round(max(even, odd) / min(even, odd) - 1, 12))


def speedup_interval(reference: Sequence[float], candidate: Sequence[float], known: float = 0.0) -> Interval:
    """The speedup from paired times, and its interval.

    The interval of the ratios is widened by the noise of the reference against itself, or by `known`, if that is more.

    Args:
        reference: its times.
        candidate: its times, each measured beside the reference's of the same place.
        known: relative error of the speedup that is known from elsewhere.

    >>> speedup_interval([2.0] * 20, [1.0] * 20)  # doctest: +ELLIPSIS
    Interval(median=2.0, low=1.99..., high=2.0...)
    >>> speedup_interval([2.0] * 20, [1.0] * 20, 0.25)
    Interval(median=2.0, low=1.6, high=2.5)
    """
    ratio = median_interval([mine / other for mine, other in zip(reference, candidate, strict=True)])
    noise = max(noise_of(reference), known)
    return Interval(ratio.median, ratio.low / (1 + noise), ratio.high * (1 + noise))
