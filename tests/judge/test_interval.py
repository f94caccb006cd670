"""Confidence intervals of speedups, on random measurements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_coder.judge.examiner.timing.speedup import (
    Interval,
    median_interval,
    noise_of,
    order_of_bound,
    speedup_interval,
)

ROUNDS = 32


def times(draw: np.random.Generator, ms: float, noise: float) -> list[float]:
    """Return times of calls on a shared machine: the clock drifts, and one call in twelve is delayed."""
    drift = 1 + noise / 2 * np.sin(draw.uniform(0, 6) + np.linspace(0, draw.uniform(1, 9), ROUNDS))
    held_up = 1 + draw.exponential(10 * noise, ROUNDS) * (draw.random(ROUNDS) < 1 / 12)
    return list(ms * drift * held_up * np.exp(draw.normal(0, noise, ROUNDS)))


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05])
@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.3])
def test_the_true_speedup_is_in_the_interval(noise: float, speedup: float) -> None:
    draw = np.random.default_rng(round(1000 * noise + speedup))
    found = [speedup_interval(times(draw, speedup, noise), times(draw, 1.0, noise)) for _ in range(400)]
    assert sum(one.low <= speedup <= one.high for one in found) >= 0.98 * len(found)


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05])
def test_the_best_of_two_hundred_copies_gains_nothing_beyond_the_noise(noise: float) -> None:
    """A search may keep the luckiest of many copies of the reference. The lower bound counts, so that gains nothing."""
    draw = np.random.default_rng(0)
    found = [speedup_interval(times(draw, 1.0, noise), times(draw, 1.0, noise)) for _ in range(200)]
    assert max(one.low for one in found) <= 1 + noise / 2
    assert max(one.median for one in found) > max(one.low for one in found)


def test_bounds_contain_the_median_as_often_as_their_confidence_says() -> None:
    for count in (8, 11, 32, 101):
        k = order_of_bound(count, 0.95)
        draw = np.random.default_rng(count)
        values = np.sort(draw.normal(size=(4000, count)), axis=1)
        held = ((values[:, k] <= 0) & (values[:, -1 - k] >= 0)).mean()
        assert held >= 0.94


def test_equal_times_have_an_interval_as_wide_as_the_resolution() -> None:
    one = speedup_interval([2.0] * ROUNDS, [2.0] * ROUNDS)
    assert one == Interval(1.0, pytest.approx(1 / 1.005), pytest.approx(1.005))


def test_order_of_measurements_changes_the_noise_but_not_the_interval_of_the_median() -> None:
    values = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    assert all(median_interval(each) == median_interval(values) for each in itertools.permutations(values))
    assert noise_of(values) == 1.0
    assert noise_of([1.0, 1.0, 2.0, 2.0]) == 0.005


def test_median_of_no_measurements_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])
