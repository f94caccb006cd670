"""A speedup and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A median and its confidence interval."""

    median: float
    low: float
    high: float


def order_of_bound(count: int, confidence: float = CONFIDENCE) -> int:
    """Index of the lower bound of a median's interval in `count` sorted values; 0 where even the extremes are too few.

    The number of values below the median is binomial(count, 1/2), so the values at index k and count - 1 - k enclose it
    with probability 1 - 2 P(fewer than k + 1 below). Source: any text on order statistics.

    >>> [order_of_bound(count) for count in (5, 6, 20, 100)]
    [0, 0, 5, 39]
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
