"""The judge against its corpus: nobody hostile gets through, hardly anybody honest is turned away, nothing is left.

Every candidate that means something on this device is judged, hostile and honest ones in one judge, in a mixed order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import corpus
import pytest
from corpus import Candidate
from kernel_coder.judge import Judge, JudgeConfig, Outcome, Verdict
from kernel_coder.tasks import Task

BUILT = 3
"""Candidates that call a C++ compiler, half a minute each: so many of them, the first by name, on the CPU."""


def chosen(candidates: tuple[Candidate, ...], device: str) -> list[Candidate]:
    if device != "cpu":
        return list(candidates)
    here = [one for one in candidates if not one.needs_cuda and one.backend != "cuda"]
    slow = [one for one in here if one.slow]
    return [one for one in here if not one.slow] + slow[:BUILT]


def accepted(candidate: Candidate, verdict: Verdict) -> bool:
    """A hostile candidate has got what it wanted."""
    if candidate.leak and candidate.leak in verdict.to_json():
        return True
    if candidate.expect == "no gain":  # it is right, and slow
        return verdict.correct and verdict.speedup_low is not None and verdict.speedup_low >= 1
    return verdict.correct


def processes() -> set[str]:
    return {child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, tuple[Candidate, Verdict]]:
    device = "cuda" if os.environ.get("KC_REQUIRE_CUDA") == "1" else "cpu"
    config = JudgeConfig(timeout_s=8 if device == "cpu" else 60, timed_calls=20, timing_s=1.0, memory_bytes=4 << 30)
    before, descriptors = processes(), len(os.listdir("/proc/self/fd"))
    everybody = chosen(corpus.hostile(), device) + chosen(corpus.honest(), device)
    random.Random(0).shuffle(everybody)
    quick, built = [one for one in everybody if not one.slow], [one for one in everybody if one.slow]
    found: dict[str, tuple[Candidate, Verdict]] = {}
    for some, limits in ((quick, config), (built, config.model_copy(update={"timeout_s": 240.0}))):
        with Judge(device, config=limits) as judge:
            for one, verdict in zip(some, judge.evaluate_many(pairs(some)), strict=True):
                found[one.name] = (one, verdict)
    assert processes() <= before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    return found


def pairs(candidates: list[Candidate]) -> Iterator[tuple[Task, str, str]]:
    for one in candidates:
        task = Task(id=one.task.name, source="corpus", reference=one.task.source, precision=one.task.precision)
        yield task, one.source, one.backend


@pytest.mark.timeout(1200)
def test_no_hostile_candidate_gets_what_it_wants(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    hostile = [pair for pair in verdicts.values() if pair[0].is_hostile]
    assert len(hostile) >= 80
    assert not [(one.name, verdict.outcome, verdict.speedup) for one, verdict in hostile if accepted(one, verdict)]


def test_none_of_them_is_taken_for_the_judge_s_own_failure(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    escaped = [one.name for one, verdict in verdicts.values() if verdict.outcome is Outcome.HARNESS_FAILED]
    assert not escaped


def test_honest_candidates_are_correct(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    honest = [pair for pair in verdicts.values() if not pair[0].is_hostile]
    assert len(honest) >= 80
    refused = [(one.name, verdict.outcome, verdict.reason) for one, verdict in honest if not verdict.correct]
    assert len(refused) <= len(honest) // 100, refused


def test_who_is_refused_is_told_why(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    for one, verdict in verdicts.values():
        if not verdict.correct:
            assert verdict.reason, one.name
            assert verdict.feedback, one.name
            assert "\x1b" not in verdict.feedback, one.name
