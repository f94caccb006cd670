"""Another program keeps the GPU busy. It slows candidate and reference equally, and must not raise a speedup."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import corpus
import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome, Verdict
from kernel_coder.judge.examiner.timing.clock import RequestClock
from kernel_coder.judge.examiner.timing_constants import FLUSH_BYTES, SHARED_PROBES
from kernel_coder.judge.gpu.contention import LOADED, PROBE_STEPS
from kernel_coder.tasks import Task

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1)

def get_inputs():
    return [torch.randn(4096, 4096)]

def get_init_inputs():
    return []
"""
SAME = REFERENCE.replace("class Model(", "class ModelNew(")
TWICE = SAME.replace("return torch.softmax(x, 1)", "return torch.softmax(x, 1) + 0 * torch.softmax(x, 1)")
TASK = Task(id="load/softmax", source="test", reference=REFERENCE)
BURNER = """
import sys, torch
x = torch.randn(2048, 2048, device=sys.argv[1])
for begun in range(1_000_000_000):
    for _ in range(50):
        x = (x @ x).clamp(-1, 1)  # the first one takes a second, in which libraries are loaded
    torch.cuda.synchronize()
    if not begun:
        print("burning", flush=True)
"""
CONFIG = JudgeConfig(timed_calls=50, timing_s=5.0, profile=False, checks=2, workers=2)


def like_itself(verdict: Verdict) -> float:
    """Check that the interval of the reference as candidate contains 1, within 2%. Return the estimate of the speedup;
    estimates were up to 13% away from 1."""
    assert verdict.correct, verdict.reason
    assert verdict.speedup is not None
    assert verdict.speedup_low is not None
    assert verdict.speedup_high is not None
    assert verdict.speedup_low < 1.02, verdict.speedup_low
    assert verdict.speedup_high > 0.98, verdict.speedup_high
    return verdict.speedup


def slower_than_one(verdict: Verdict) -> None:
    assert verdict.correct, verdict.reason
    assert verdict.speedup is not None
    assert verdict.speedup < 0.8, verdict.speedup


def speedup_of_nine(judge: Judge) -> float:
    """Return the median speedup of nine examinations of a candidate that computes everything twice. Single speedups
    differ by up to a fifth."""
    found = [judge.evaluate(TASK, TWICE, "torch") for _ in range(9)]
    for one in found:
        slower_than_one(one)
    return statistics.median(one.speedup for one in found if one.speedup is not None)


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_gpu_work_that_a_candidate_leaves_behind_does_not_slow_later_timings(device: str) -> None:
    """The work ends with the examination. Until then, the first call may run beside the timing of another candidate."""
    burner = next(one for one in corpus.hostile() if one.name == "h40_gpu_burner")
    task = Task(id=burner.task.name, source="corpus", reference=burner.task.source)
    with Judge(device, config=CONFIG) as judge:
        alone = speedup_of_nine(judge)
        judge.evaluate(task, burner.source, burner.backend)
        after = speedup_of_nine(judge)
        judge.evaluate(task, burner.source, burner.backend)
        like_itself(judge.evaluate(TASK, SAME, "torch"))
    assert after == pytest.approx(alone, rel=0.15)


@contextmanager
def burning(device: str) -> Iterator[None]:
    """Run a program that is no candidate and uses the GPU all the time."""
    with subprocess.Popen([sys.executable, "-c", BURNER, device], stdout=subprocess.PIPE) as burner:
        try:
            assert burner.stdout is not None
            assert burner.stdout.readline() == b"burning\n"
            yield
        finally:
            burner.kill()


@pytest.mark.gpu
@pytest.mark.timeout(120)
def test_clock_notices_another_program_that_uses_the_gpu(device: str) -> None:
    found = RequestClock.__new__(RequestClock)
    found.flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    found.device = torch.device(device)

    def loads(name: str) -> list[float]:
        seen = [found.load() for _ in range(40)]
        print(f"{name}, {PROBE_STEPS} steps: " + " ".join(f"{one:.2f}" for one in seen))
        return seen

    loads("at first")
    quiet = loads("alone")
    with burning(device):
        loaded = loads("beside a burner")
    time.sleep(1.0)
    afterwards = loads("alone again")
    assert statistics.median(quiet) < 1.15
    for seen in (quiet, afterwards):
        assert sum(one >= LOADED for one in seen) <= SHARED_PROBES * len(seen) / 2
    assert sum(one >= LOADED for one in loaded) >= 3 * SHARED_PROBES * len(loaded)


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_candidates_that_leave_work_on_the_gpu_at_the_same_time_gain_nothing(device: str) -> None:
    hostile = [one for one in corpus.hostile() if one.name.startswith("h40_gpu")]
    pairs = [(Task(id="load", source="corpus", reference=one.task.source), one.source, one.backend) for one in hostile]
    config = CONFIG.model_copy(update={"workers": 6, "timing_s": 1.0, "timed_calls": 20})
    with Judge(device, config=config) as judge:
        found = list(judge.evaluate_many(pairs * 2))
    print([(one.outcome.value, one.speedup_low, one.speedup) for one in found])
    assert not [one for one in found if one.correct and (one.speedup_low or 0.0) >= 1]
    assert not [one for one in found if one.outcome is Outcome.HARNESS_FAILED]


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_load_of_another_program_makes_no_candidate_faster_than_the_reference(device: str) -> None:
    """Candidate and reference wait equally for the time slices of the other program, so speedups move towards 1."""
    with burning(device), Judge(device, config=CONFIG) as judge:
        like_itself(judge.evaluate(TASK, SAME, "torch"))
        slower = judge.evaluate(TASK, TWICE, "torch")
    assert slower.correct, slower.reason
    assert slower.speedup_low is not None
    assert slower.speedup_low < 1


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_one_kernel_many_times_keeps_its_verdict(device: str) -> None:
    with Judge(device, config=CONFIG) as judge:
        found = [like_itself(judge.evaluate(TASK, SAME, "torch")) for _ in range(10)]
    assert 0.95 < statistics.median(found) < 1.05, found
