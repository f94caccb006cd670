"""The judge against its corpus: it accepts no hostile candidate, refuses few honest ones, and leaves nothing behind.

One judge gets hostile and honest candidates in a mixed order. On a GPU, and with KC_CORPUS=all, it gets all candidates
that make sense on the device. Otherwise it gets one form of each hack and a few dozen honest candidates. The candidates
that wait for a compiler have a judge of their own, and only `make test-long` runs it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import pytest
from corpus import Candidate
from kernel_coder.judge import Judge, JudgeConfig, Outcome, Verdict
from kernel_coder.judge.gpu import nvml
from kernel_coder.tasks import Task

FORMS, HONEST, WITH_GRADIENTS = 1, 48, 4
"""In the short selection: the number of forms of each hack, and the numbers of honest candidates without and with
gradients. The forms of a hack in outputs and in gradients are counted apart."""

BUILT = frozenset({"h03_cpp_at", "h03_compile", "cpp_add_in_place", "torch_compiled"})
"""Candidates in the short selection that wait for a compiler. One hostile and one honest candidate are built from C++.
Inductor compiles one hostile and one honest candidate."""

HANGING = {
    "h50_stops_itself",
    "h55_import_time",
    "h55_unrolled",
    "h56_lock",
    "h63_deadlock",
    "h63_in_c",
    "h63_loop_in_call",
} | {"h63_signals_ignored", "h64_triton_loop", "h65_fork_bomb", "h65_shells", "h66_children", "h68_disk"}
"""Candidates that run until their time limit on a CPU. So their limit is only four seconds."""

LEAST = {"quick": 40, "built": 2}
"""The judge must get at least this number of hostile candidates, and of honest ones."""


def chosen(candidates: tuple[Candidate, ...], device: str) -> list[Candidate]:
    if device == "cpu":
        here = [one for one in candidates if not (one.needs_cuda or one.backend == "cuda")]
    else:
        here = [one for one in candidates if not one.needs_cpu]
    if device != "cpu" or os.environ.get("KC_CORPUS") == "all":
        return here
    quick, slow = [one for one in here if not one.slow], [one for one in here if one.slow]
    forms: Counter[tuple[str | None, bool]] = Counter()
    some = []
    for one in quick:
        forms[one.hack, one.gradients] += 1
        honest = WITH_GRADIENTS if one.gradients else HONEST
        if forms[one.hack, one.gradients] <= (FORMS if one.is_hostile else honest):
            some.append(one)
    return some + [one for one in slow if one.name in BUILT]


def accepted(candidate: Candidate, verdict: Verdict) -> bool:
    """Whether a hostile candidate reached its aim."""
    if candidate.leak and candidate.leak in verdict.to_json():
        return True
    if candidate.expect == "no gain":  # the output is right, but every call sleeps
        return verdict.correct and verdict.speedup_low is not None and verdict.speedup_low >= 1
    return verdict.correct


def processes() -> set[int]:
    """Children of this process, started by any of its threads."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            fields = stat.read_text().rpartition(")")[2].split()
            found |= {int(stat.parent.name)} if int(fields[1]) == os.getpid() else set()
    return found


def limits(device: str, is_built: bool = False) -> JudgeConfig:
    """Settings for the whole corpus. Candidates that wait for a compiler get more time."""
    timeout_s = 240.0 if is_built else 30.0 if device == "cpu" else 60.0
    return JudgeConfig(timeout_s=timeout_s, timed_calls=20, timing_s=1.0, memory_bytes=4 << 30)


@pytest.fixture(scope="module", params=["quick", pytest.param("built", marks=pytest.mark.long)])
def verdicts(
    request: pytest.FixtureRequest, own_servers: Callable[[], contextlib.AbstractContextManager[None]]
) -> dict[str, tuple[Candidate, Verdict]]:
    device = "cuda" if os.environ.get("KC_REQUIRE_CUDA") == "1" else "cpu"
    before, descriptors = processes(), len(os.listdir("/proc/self/fd"))
    candidates = chosen(corpus.hostile(), device) + chosen(corpus.honest(), device)
    random.Random(0).shuffle(candidates)
    hanging = HANGING if device == "cpu" else set[str]()
    parts: dict[Any, list[Candidate]] = defaultdict(list)
    for one in candidates:
        if bool(one.slow) == (request.param == "built"):
            parts[240.0 if one.slow else 4.0 if one.name in hanging else 60.0, one.settings].append(one)
    found: dict[str, tuple[Candidate, Verdict]] = {}
    for (timeout_s, settings), some in parts.items():
        config = limits(device).model_copy(update={"timeout_s": timeout_s, **dict(settings)})
        with own_servers(), Judge(device, config=config) as judge:
            for one, verdict in zip(some, judge.evaluate_many(pairs(some)), strict=True):
                found[one.name] = (one, verdict)
    assert processes() <= before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    hostile = sum(one.is_hostile for one, _ in found.values())
    assert min(hostile, len(found) - hostile) >= LEAST[request.param]
    return found


def pairs(candidates: list[Candidate]) -> Iterator[tuple[Task, str, str]]:
    for one in candidates:
        task = Task(id=one.task.name, source="corpus", reference=one.task.source, precision=one.task.precision)
        yield task, one.source, one.backend


@pytest.mark.timeout(1200)
def test_no_hostile_candidate_is_accepted(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    hostile = [pair for pair in verdicts.values() if pair[0].is_hostile]
    assert not [(one.name, verdict.outcome, verdict.speedup) for one, verdict in hostile if accepted(one, verdict)]


def test_no_candidate_is_reported_as_a_failure_of_the_judge(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    escaped = [one.name for one, verdict in verdicts.values() if verdict.outcome is Outcome.HARNESS_FAILED]
    assert not escaped


def test_honest_candidates_are_correct(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    honest = [pair for pair in verdicts.values() if not pair[0].is_hostile]
    refused = [(one.name, verdict.outcome, verdict.reason) for one, verdict in honest if not verdict.correct]
    assert len(refused) <= len(honest) // 100, refused


def test_every_refused_candidate_gets_a_reason_and_feedback(verdicts: dict[str, tuple[Candidate, Verdict]]) -> None:
    for one, verdict in verdicts.values():
        if not verdict.correct:
            assert verdict.reason, one.name
            assert verdict.feedback, one.name
            assert "\x1b" not in verdict.feedback, one.name


HOSTILE_IN_A_ROW, HONEST_AFTERWARDS = 1000, 100
FORGOTTEN = 256 << 20
"""Bytes of GPU memory that the CUDA context of this process may take during the test."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(os.environ.get("KC_CORPUS") != "all", reason="takes half an hour; KC_CORPUS=all runs it")
def test_after_a_thousand_hostile_candidates_honest_ones_are_judged_as_before(
    own_servers: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    device = "cuda" if os.environ.get("KC_REQUIRE_CUDA") == "1" else "cpu"
    hostile = [one for one in chosen(corpus.hostile(), device) if not one.slow]
    honest = [one for one in chosen(corpus.honest(), device) if not one.slow][:HONEST_AFTERWARDS]
    thousand = hostile * (HOSTILE_IN_A_ROW // len(hostile) + 1)
    random.Random(1).shuffle(thousand)
    thousand = thousand[:HOSTILE_IN_A_ROW]
    memory = nvml.memory() if device == "cuda" else None
    before, descriptors, shared = processes(), len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    config = JudgeConfig(
        timeout_s=12 if device == "cpu" else 30, timed_calls=20, timing_s=1.0, memory_bytes=4 << 30, profile=False
    )
    with own_servers(), Judge(device, config=config) as judge:
        clean = [verdict.outcome for verdict in judge.evaluate_many(pairs(honest))]
    with own_servers(), Judge(device, config=config) as judge:
        took_it = [
            (one.name, verdict.outcome)
            for one, verdict in zip(thousand, judge.evaluate_many(pairs(thousand)), strict=True)
            if accepted(one, verdict) or verdict.outcome is Outcome.HARNESS_FAILED
        ]
        afterwards = [verdict.outcome for verdict in judge.evaluate_many(pairs(honest))]
    assert not took_it
    assert afterwards == clean
    if memory is not None:
        after = nvml.memory()
        assert after is not None
        assert after.used <= memory.used + FORGOTTEN
    assert processes() <= before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    assert set(os.listdir("/dev/shm")) <= shared
