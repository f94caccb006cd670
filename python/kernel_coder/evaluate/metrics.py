"""Metrics of an evaluation: shares of correct samples, fast_p, pass@k, geometric means of speedups.

Every metric is a ratio of two sums over tasks, ``sum_t a_t / sum_t b_t``, so one bootstrap over tasks gives all
intervals (:func:`intervals`). Verdicts with outcome ``harness_failed`` say nothing about the candidate: they are
counted separately and are in no sum. A metric that needs a speedup is None where none was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernel_coder.judge import Outcome, Verdict

Baseline = Literal["eager", "compile"]

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
"""The values of p for which fast_p is reported: those of KernelBench and some between them."""

CONFIDENCE = 0.95
"""Probability that an interval covers the true value."""

RESAMPLES = 10_000
"""Number of bootstrap draws. With it, an interval's end has a standard error of 0.7% of its width (normal
distribution)."""

BLOCK = 4_000_000
"""Upper limit for the numbers that are held at once while resampling, 32 MB of float64."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A metric's value and its interval; None where they are not known."""

    value: float | None
    low: float | None = None
    high: float | None = None
    of: int = 0  # the number of samples (for pass@k: tasks) that the value averages over


def speedup(verdict: Verdict, baseline: Baseline = "eager") -> float | None:
    """Return the speedup of a correct candidate over the reference; None if it was not measured.

    With baseline ``eager`` this is ``verdict.speedup``, the median over paired measurements; with ``compile`` it is
    ``reference_compile_ms / runtime_ms``, where the reference ran under ``torch.compile``.

    >>> from kernel_coder.judge import example_verdict
    >>> verdict = example_verdict("correct", speedup=2.0, reference_compile_ms=1.5)
    >>> speedup(verdict), speedup(verdict, "compile"), speedup(example_verdict("timeout"))
    (2.0, 1.5, None)
    """
    if not verdict.correct or verdict.interpreted:
        return None
    if baseline == "eager":
        return verdict.speedup
    if verdict.reference_compile_ms is None or verdict.runtime_ms is None:
        return None
    return verdict.reference_compile_ms / verdict.runtime_ms


def fast_p(verdicts: Iterable[Verdict], p: float, baseline: Baseline = "eager") -> float | None:
    """Return the share of samples that are correct and more than ``p`` times as fast as the reference.

    ``fast_p = (1/n) sum_i [correct_i and speedup_i > p]`` over the ``n`` samples that were scored, as in KernelBench
    (Ouyang et al. 2025, section 3.4; ``fastp`` in its ``score.py``, which has one sample for each task). ``p = 0``
    gives the share of correct samples, timed or not. For ``p > 0`` the result is None if a sample ran in the
    interpreter or a correct one was not timed. It is also None if no sample was scored.

    >>> from kernel_coder.judge import example_verdict
    >>> verdicts = [example_verdict("correct", speedup=s) for s in (0.9, 1.0, 2.5)] + [example_verdict("wrong_output")]
    >>> [fast_p(verdicts, p) for p in (0, 0.5, 1, 2)]
    [0.75, 0.75, 0.25, 0.25]
    >>> untimed = [example_verdict("correct", interpreted=True)]
    >>> fast_p(untimed, 0), fast_p(untimed, 1)
    (1.0, None)
    """
    scored = [verdict for verdict in verdicts if verdict.is_scored]
    if not scored or (p > 0 and not is_timed(scored, baseline)):
        return None
    return sum(is_fast(verdict, p, baseline) for verdict in scored) / len(scored)


def is_fast(verdict: Verdict, p: float, baseline: Baseline = "eager") -> bool:
    """Return whether a candidate is correct and more than ``p`` times as fast as the reference; ``p = 0``: just
    correct."""
    ratio = speedup(verdict, baseline)
    return verdict.correct and (p == 0 or (ratio is not None and ratio > p))


def is_timed(verdicts: Iterable[Verdict], baseline: Baseline = "eager") -> bool:
    """Return whether no verdict comes from the interpreter and every correct one has a speedup."""
    return all(
        not verdict.interpreted and (not verdict.correct or speedup(verdict, baseline) is not None)
        for verdict in verdicts
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of ``k`` samples passes, estimated from ``n`` samples of which ``c``
    passed.

    ``1 - C(n - c, k) / C(n, k)``: the share of the ways to choose ``k`` of ``n`` samples that include one that passed.
    This estimate is unbiased (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1), unlike
    ``1 - (1 - c/n)**k``. Python's integers are exact, so only the final division rounds.

    Raises:
        ValueError: unless ``0 <= c <= n`` and ``1 <= k <= n``.

    >>> pass_at_k(10, 3, 1), pass_at_k(4, 2, 2), pass_at_k(5, 0, 5)
    (0.3, 0.8333333333333334, 0.0)
    """
    if not 0 <= c <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n; got c = {c} of n = {n}")
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n samples; got k = {k} of n = {n}")
    ways = math.comb(n, k)
    return (ways - math.comb(n - c, k)) / ways


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return ``exp(mean(log(x)))``; None for no values (KernelBench's ``score.py`` returns 0).

    >>> geometric_mean([0.5, 2.0]), geometric_mean([])
    (1.0, None)
    """
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def intervals(
    numerators: np.ndarray,
    denominators: np.ndarray,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> list[tuple[float, float] | None]:
    """Return the percentile bootstrap intervals over tasks (Efron 1979) for ratios of sums.

    Samples of one task are not independent, so each draw takes whole tasks: as many as there are, with replacement. A
    draw gives ``sum a_t / sum b_t``; the interval lies between the quantiles ``(1 - confidence) / 2`` and ``(1 +
    confidence) / 2`` of all draws. Draws with denominator 0 are left out. The interval is None if fewer than two tasks
    have a denominator. It has no width if every task has the same ratio, as when no answer is correct, because then all
    draws are equal.

    Args:
        numerators: ``a_t``, float [tasks, metrics].
        denominators: ``b_t``, float [tasks, metrics].
        seed: seed of the draws; all metrics use the same draws.
        resamples: number of draws.
        confidence: probability that an interval covers the true value.

    >>> intervals(np.array([[1.0], [0.0], [1.0], [0.0]]), np.ones((4, 1)))
    [(0.0, 1.0)]
    """
    tasks, metrics = numerators.shape
    generator = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    block = max(BLOCK // max(tasks, 1), 1)
    for start in range(0, resamples if tasks > 1 else 0, block):
        size = min(block, resamples - start)
        # How often each task is drawn: [size, tasks].
        times = generator.multinomial(tasks, np.full(tasks, 1 / tasks), size=size).astype(np.float64)
        parts.append(np.stack([times @ numerators, times @ denominators]))
    found: list[tuple[float, float] | None] = []
    for column in range(metrics):
        if (denominators[:, column] > 0).sum() < 2:
            found.append(None)
            continue
        above, below = np.concatenate([part[:, :, column] for part in parts], axis=1)
        ratios = above[below > 0] / below[below > 0]
        low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
        found.append((float(low), float(high)))
    return found


@dataclass(frozen=True, slots=True)
class Summary:
    """All metrics of a set of tasks.

    Attributes:
        tasks: number of tasks.
        samples: number of verdicts, including ``harness_failed``.
        harness_failed: number of verdicts with outcome ``harness_failed``; they are left out of all metrics below.
        outcomes: number of verdicts by outcome.
        compiled: share of scored samples that compiled.
        correct: share of scored samples that are correct.
        fast_p: :func:`fast_p` by baseline and p.
        pass_at_k: by criterion (``compiled``, ``correct``, ``fast_1``) and k: the mean of :func:`pass_at_k` over the
            tasks that have at least k scored samples.
        geometric_mean: by baseline: the geometric mean of the speedups of correct samples (``correct``) and of those
            that are faster than the reference (``correct_and_faster``), as in KernelBench's ``score.py``.
    """

    tasks: int
    samples: int
    harness_failed: int
    outcomes: dict[str, int]
    compiled: Estimate
    correct: Estimate
    fast_p: dict[str, dict[str, Estimate]]
    pass_at_k: dict[str, dict[str, Estimate]]
    geometric_mean: dict[str, dict[str, Estimate]]


def summarise(
    verdicts: Mapping[str, Sequence[Verdict]],
    *,
    ks: Sequence[int] = (1,),
    baselines: Sequence[Baseline] = ("eager",),
    thresholds: Sequence[float] = THRESHOLDS,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Summary:
    """Return all metrics of the verdicts on each task, with bootstrap intervals over tasks.

    Shares are pooled over scored samples: ``sum_t hits_t / sum_t n_t``. pass@k is a mean over tasks. Speedups are
    averaged as logarithms: ``exp(sum_t sum_i log(s_ti) / sum_t count_t)``, and so are the ends of their intervals.

    >>> from kernel_coder.judge import example_verdict
    >>> verdicts = {"a": [example_verdict("correct", speedup=2.0), example_verdict("wrong_output")],
    ...             "b": [example_verdict("compile_error"), example_verdict("harness_failed")]}
    >>> found = summarise(verdicts, ks=(1, 2))
    >>> round(found.correct.value, 3), found.correct.of, found.harness_failed
    (0.333, 3, 1)
    >>> found.pass_at_k["correct"]["1"].value, found.pass_at_k["correct"]["2"]
    (0.25, Estimate(value=1.0, low=None, high=None, of=1))
    """
    everything = [verdict for task in verdicts.values() for verdict in task]
    scored = [[verdict for verdict in task if verdict.is_scored] for task in verdicts.values()]
    pooled = [verdict for task in scored for verdict in task]
    table = _Ratios(scored, seed=seed, resamples=resamples)

    table.share(("compiled",), lambda verdict: verdict.compiled)
    table.share(("correct",), lambda verdict: verdict.correct)
    for baseline in baselines:
        timed = is_timed(pooled, baseline)
        for p in thresholds:
            table.share(
                ("fast_p", baseline, f"{p:g}"),
                lambda verdict, p=p, baseline=baseline: is_fast(verdict, p, baseline),  # type: ignore[misc]
                known=p == 0 or timed,
            )
        for name, least in (("correct", 0.0), ("correct_and_faster", 1.0)):
            table.log_speedup(("geometric_mean", baseline, name), baseline, least, known=timed)
    for k in ks:
        for name, passes, known in (
            ("compiled", lambda verdict: verdict.compiled, True),
            ("correct", lambda verdict: verdict.correct, True),
            ("fast_1", lambda verdict: is_fast(verdict, 1.0), is_timed(pooled)),
        ):
            table.pass_at_k(("pass_at_k", name, str(k)), passes, k, known=known)

    estimates = table.estimates()
    nested: dict[str, dict[str, dict[str, Estimate]]] = {"fast_p": {}, "pass_at_k": {}, "geometric_mean": {}}
    for (kind, *path), estimate in estimates.items():
        if path:
            nested[kind].setdefault(path[0], {})[path[1]] = estimate
    return Summary(
        tasks=len(verdicts),
        samples=len(everything),
        harness_failed=len(everything) - len(pooled),
        outcomes={outcome.value: count for outcome, count in _by_outcome(everything).items()},
        compiled=estimates["compiled",],
        correct=estimates["correct",],
        **nested,
    )


def _by_outcome(verdicts: Iterable[Verdict]) -> dict[Outcome, int]:
    """Return the outcomes that occurred, in the order of :class:`Outcome`."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


Name = tuple[str, ...]


class _Ratios:
    """Collects the numerators and denominators of all metrics by task, so that one bootstrap gives all intervals."""

    def __init__(self, scored: Sequence[Sequence[Verdict]], *, seed: int, resamples: int) -> None:
        self.scored = scored
        self.seed, self.resamples = seed, resamples
        self.columns: dict[Name, tuple[list[float], list[float]] | None] = {}  # None: not measured
        self.logarithms: set[Name] = set()

    def share(self, name: Name, passes: Callable[[Verdict], bool], *, known: bool = True) -> None:
        hits = [float(sum(map(passes, task))) for task in self.scored]
        self.columns[name] = (hits, [float(len(task)) for task in self.scored]) if known else None

    def pass_at_k(self, name: Name, passes: Callable[[Verdict], bool], k: int, *, known: bool) -> None:
        enough = [len(task) >= k for task in self.scored]
        chances = [
            pass_at_k(len(task), sum(map(passes, task)), k) if there else 0.0
            for task, there in zip(self.scored, enough, strict=True)
        ]
        self.columns[name] = (chances, [float(there) for there in enough]) if known else None

    def log_speedup(self, name: Name, baseline: Baseline, least: float, *, known: bool) -> None:
        self.logarithms.add(name)
        ratios = [[speedup(verdict, baseline) for verdict in task] for task in self.scored]
        logs = [[math.log(ratio) for ratio in task if ratio is not None and ratio > least] for task in ratios]
        self.columns[name] = (
            ([math.fsum(task) for task in logs], [float(len(task)) for task in logs]) if known else None
        )

    def estimates(self) -> dict[Name, Estimate]:
        known = {name: column for name, column in self.columns.items() if column is not None}
        above = np.array([column[0] for column in known.values()]).T.reshape(len(self.scored), len(known))
        below = np.array([column[1] for column in known.values()]).T.reshape(len(self.scored), len(known))
        bounds = dict(zip(known, intervals(above, below, seed=self.seed, resamples=self.resamples), strict=True))
        return {name: self._estimate(name, bounds.get(name)) for name in self.columns}

    def _estimate(self, name: Name, bounds: tuple[float, float] | None) -> Estimate:
        column = self.columns[name]
        total = 0 if column is None else int(sum(column[1]))
        if column is None or not total:
            return Estimate(None)
        unit = math.exp if name in self.logarithms else float
        value = unit(math.fsum(column[0]) / total)
        low, high = (None, None) if bounds is None else map(unit, bounds)
        return Estimate(value, low, high, total)
