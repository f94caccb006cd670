"""The metrics compared with slow and simple implementations."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_coder.evaluate.metrics import (
    THRESHOLDS,
    Estimate,
    fast_p,
    geometric_mean,
    intervals,
    pass_at_k,
    speedup,
    summarise,
)
from kernel_coder.judge import Outcome, Verdict, example_verdict

SPEEDUPS = st.sampled_from([0.25, 0.5, 0.8, 1.0, 1.1, 1.5, 2.0, 7.0])
TIMED = st.one_of(
    SPEEDUPS.map(lambda s: example_verdict("correct", speedup=s, reference_compile_ms=s / 2)),
    st.sampled_from([o.value for o in Outcome if o is not Outcome.CORRECT]).map(example_verdict),
)
BY_TASK = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.lists(TIMED, min_size=1, max_size=5), max_size=6
)


def scored(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.outcome is not Outcome.HARNESS_FAILED]


# pass@k


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.floats(0, 1), st.data())
def test_pass_at_k_is_unbiased(n: int, p: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_pass_at_k_of_many_samples_is_exact() -> None:
    assert pass_at_k(10_000, 1, 5_000) == 0.5


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_impossible_arguments(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"pass@k needs"):
        pass_at_k(n, c, k)


# fast_p


@settings(max_examples=50, deadline=None)
@given(st.lists(TIMED, max_size=12), st.sampled_from(THRESHOLDS))
def test_fast_p_equals_the_formula_of_kernelbench_on_scored_verdicts(verdicts: list[Verdict], p: float) -> None:
    counted = scored(verdicts)
    fast = [v for v in counted if v.correct and v.reference_ms / v.runtime_ms > p]  # type: ignore[operator]
    assert fast_p(verdicts, p) == (len(fast) / len(counted) if counted else None)


@settings(max_examples=50, deadline=None)
@given(st.lists(TIMED, min_size=1, max_size=12))
def test_fast_p_falls_with_p_and_fast_0_is_the_share_of_correct_answers(verdicts: list[Verdict]) -> None:
    counted = scored(verdicts)
    if not counted:
        return
    values = [fast_p(verdicts, p) for p in THRESHOLDS]
    assert values == sorted(values, reverse=True)  # type: ignore[type-var]
    assert values[0] == sum(v.correct for v in counted) / len(counted)


def test_a_speedup_of_exactly_p_does_not_count() -> None:
    assert fast_p([example_verdict("correct", speedup=1.0)], 1.0) == 0.0


@pytest.mark.parametrize(
    "untimed",
    [
        example_verdict("correct", interpreted=True, device="cpu"),
        example_verdict("wrong_output", interpreted=True, device="cpu"),
        example_verdict("correct"),
    ],
)
def test_speedup_metrics_have_no_value_if_an_answer_was_not_timed(untimed: Verdict) -> None:
    verdicts = [example_verdict("correct", speedup=2.0), untimed]
    assert fast_p(verdicts, 0) is not None
    assert [fast_p(verdicts, p) for p in THRESHOLDS[1:]] == [None] * 6
    found = summarise({"a": verdicts})
    assert found.fast_p["eager"]["1"] == found.pass_at_k["fast_1"]["1"] == Estimate(None)
    assert found.geometric_mean["eager"]["correct"] == Estimate(None)
    assert found.correct.value is not None


def test_compile_baseline_uses_the_time_of_the_compiled_reference() -> None:
    verdict = example_verdict("correct", speedup=3.0, reference_compile_ms=1.5)
    assert speedup(verdict, "compile") == 1.5
    assert fast_p([verdict], 2.0) == 1.0
    assert fast_p([verdict], 2.0, "compile") == 0.0
    assert fast_p([verdict, example_verdict("correct", speedup=3.0)], 1.0, "compile") is None


# Everything together


@settings(max_examples=60, deadline=None)
@given(BY_TASK)
def test_summary_equals_values_computed_with_slow_loops(by_task: dict[str, list[Verdict]]) -> None:
    found = summarise(by_task, ks=(1, 2), baselines=("eager", "compile"), resamples=50)
    everything = [verdict for task in by_task.values() for verdict in task]
    counted = scored(everything)
    assert found.samples == len(everything)
    assert found.harness_failed == len(everything) - len(counted)
    assert sum(found.outcomes.values()) == len(everything)
    assert found.compiled.of == found.correct.of == len(counted)
    for p in THRESHOLDS:
        for baseline in ("eager", "compile"):
            assert found.fast_p[baseline][f"{p:g}"].value == fast_p(everything, p, baseline)  # type: ignore[arg-type]
    correct = [verdict for verdict in counted if verdict.correct]
    if counted:
        assert found.correct.value == len(correct) / len(counted)
        assert found.compiled.value == sum(verdict.compiled for verdict in counted) / len(counted)
    for baseline, name in itertools.product(("eager", "compile"), ("correct", "correct_and_faster")):
        ratios = [speedup(verdict, baseline) for verdict in correct]  # type: ignore[arg-type]
        kept = [ratio for ratio in ratios if ratio is not None and (name == "correct" or ratio > 1)]
        value = found.geometric_mean[baseline][name]
        assert value.of == len(kept)
        assert value.value == (pytest.approx(np.prod(kept) ** (1 / len(kept)), rel=1e-12) if kept else None)
        assert geometric_mean(kept) == (pytest.approx(value.value, rel=1e-12) if kept else None)
    for k in (1, 2):
        tasks = [scored(task) for task in by_task.values() if len(scored(task)) >= k]
        chances = [pass_at_k(len(task), sum(v.correct for v in task), k) for task in tasks]
        value = found.pass_at_k["correct"][str(k)]
        assert value.of == len(tasks)
        assert value.value == (pytest.approx(sum(chances) / len(chances)) if chances else None)


@settings(max_examples=50, deadline=None)
@given(BY_TASK, st.integers(1, 3))
def test_failures_of_the_harness_change_only_their_count(by_task: dict[str, list[Verdict]], more: int) -> None:
    failed = [example_verdict("harness_failed")] * more
    before = summarise(by_task, resamples=50)
    after = summarise({name: [*task, *failed] for name, task in by_task.items()}, resamples=50)
    assert (before.compiled, before.correct, before.fast_p, before.pass_at_k) == (
        after.compiled,
        after.correct,
        after.fast_p,
        after.pass_at_k,
    )
    assert after.harness_failed == before.harness_failed + more * len(by_task)


@settings(max_examples=50, deadline=None)
@given(BY_TASK)
def test_intervals_are_ordered_and_lie_between_0_and_1(by_task: dict[str, list[Verdict]]) -> None:
    found = summarise(by_task, resamples=200)
    for one in (found.compiled, found.correct, *found.fast_p["eager"].values()):
        assert (one.low is None) == (one.high is None)
        if one.low is not None and one.high is not None:
            assert 0 <= one.low <= one.high <= 1


# The bootstrap


def slow_interval(above: list[float], below: list[float], seed: int, resamples: int) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    tasks, ratios = len(above), []
    for _ in range(resamples):
        times = generator.multinomial(tasks, [1 / tasks] * tasks)
        a = sum(n * x for n, x in zip(times, above, strict=True))
        b = sum(n * x for n, x in zip(times, below, strict=True))
        if b:
            ratios.append(a / b)
    return float(np.quantile(ratios, 0.025)), float(np.quantile(ratios, 0.975))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8), st.integers(0, 9))
def test_intervals_equal_those_of_a_slow_loop(rows: list[tuple[int, int]], seed: int) -> None:
    above, below = [float(a) for a, _ in rows], [float(b) for _, b in rows]
    (found,) = intervals(np.array([above]).T, np.array([below]).T, seed=seed, resamples=64)
    if sum(b > 0 for b in below) < 2:
        assert found is None
    else:
        assert found == pytest.approx(slow_interval(above, below, seed, 64), rel=1e-12, abs=1e-15)


def test_intervals_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    above, below = np.random.default_rng(0).random((5, 3)), np.ones((5, 3))
    whole = intervals(above, below, resamples=100)
    monkeypatch.setattr("kernel_coder.evaluate.metrics.BLOCK", 35)
    assert intervals(above, below, resamples=100) == whole


def test_intervals_contain_the_true_value_about_as_often_as_promised() -> None:
    generator, held, trials, p = random.Random(0), 0, 200, 0.3
    for trial in range(trials):
        tasks = [[float(generator.random() < p) for _ in range(2)] for _ in range(40)]
        column: Any = np.array([[sum(task)] for task in tasks])
        (found,) = intervals(column, np.full_like(column, 2.0), seed=trial, resamples=400)
        assert found is not None
        held += found[0] <= p <= found[1]
    assert 0.88 * trials < held < trials


def test_same_seed_gives_the_same_intervals_and_another_seed_different_ones() -> None:
    above, below = np.random.default_rng(1).random((9, 1)), np.ones((9, 1))
    assert intervals(above, below, seed=3) == intervals(above, below, seed=3) != intervals(above, below, seed=4)


def test_one_task_has_no_interval() -> None:
    assert summarise({"a": [example_verdict("correct", speedup=2.0)]}).correct == Estimate(1.0, None, None, 1)


def test_summary_without_verdicts_has_no_values() -> None:
    found = summarise({})
    assert (found.tasks, found.samples) == (0, 0)
    assert found.correct == found.fast_p["eager"]["1"] == Estimate(None)
