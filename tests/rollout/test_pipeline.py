"""Jobs that run before their results are needed: their order, how they end, and how long a step takes."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_coder.rollout.pipeline import Pipeline, PipelineClosed

Release = Callable[[], None]


def test_jobs_use_the_engine_one_at_a_time_and_in_order() -> None:
    using, order = threading.Lock(), []

    def make(job: int, release: Release, poll: Release) -> int:
        assert using.acquire(blocking=False)
        time.sleep(0.01 * (5 - job))  # the first ones take longest
        order.append(job)
        using.release()
        release()
        time.sleep(0.03)
        return 10 * job

    with Pipeline(make, depth=3) as pipeline:
        for number in range(5):
            pipeline.offer(number, number)
        assert [pipeline.look(number) for number in range(5)] == [0, 10, 20, 30, 40]
        spans = [pipeline.span(number) for number in range(5)]
    assert order == [0, 1, 2, 3, 4]
    assert all(span.begin <= span.released <= span.end for span in spans)
    assert spans[1].begin < spans[0].end  # the second part of a job overlaps with the first of the next


def test_jobs_must_be_offered_in_order_and_finished_results_can_be_put() -> None:
    with Pipeline(lambda job, release, poll: job, depth=2, first=7) as pipeline:
        pipeline.put(7, "made earlier")
        pipeline.offer(8, "new")
        with pytest.raises(ValueError, match="the next is 9; got 8"):
            pipeline.offer(8, "again")
        assert [pipeline.look(7), pipeline.look(8), pipeline.look(7)] == ["made earlier", "new", "made earlier"]
        pipeline.drop(7)
        with pytest.raises(KeyError):
            pipeline.look(7)


def test_error_of_a_job_is_raised_by_look_and_the_next_job_runs() -> None:
    def make(job: int, release: Release, poll: Release) -> int:
        if job == 0:
            raise TimeoutError("the job's own")
        return job

    with Pipeline(make, depth=1) as pipeline:
        pipeline.offer(0, 0)
        pipeline.offer(1, 1)
        with pytest.raises(TimeoutError, match="the job's own"):
            pipeline.look(0)
        assert pipeline.look(1) == 1


def test_close_stops_the_running_job_and_starts_no_waiting_job() -> None:
    begun, ends = threading.Event(), []

    def make(job: int, release: Release, poll: Release) -> None:
        begun.set()
        try:
            while True:
                poll()
                time.sleep(0.005)
        except PipelineClosed:
            ends.append(job)
            raise

    pipeline = Pipeline(make, depth=2)
    pipeline.offer(0, 0)
    pipeline.offer(1, 1)
    assert begun.wait(5)
    before = time.monotonic()
    pipeline.close()
    assert time.monotonic() - before < 2
    assert ends == [0]


def test_wait_for_a_job_can_be_stopped() -> None:
    release_job = threading.Event()

    def stop() -> None:
        raise KeyboardInterrupt

    with Pipeline(lambda job, release, poll: release_job.wait(5), depth=1) as pipeline:
        pipeline.offer(0, None)
        with pytest.raises(KeyboardInterrupt):
            pipeline.look(0, stop)
        release_job.set()


def test_jobs_wait_while_the_test_holds_the_engine() -> None:
    with Pipeline(lambda job, release, poll: time.monotonic(), depth=1) as pipeline:
        with pipeline.engine():
            pipeline.offer(0, None)
            time.sleep(0.05)
            until = time.monotonic()
        assert pipeline.look(0) >= until


@pytest.mark.alone
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_step_at_lag_1_takes_hardly_longer_than_its_longest_stage(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here 0.05 s stands for a second. ``bench_lag.py simulated`` uses whole seconds."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "training"))
    simulated = importlib.import_module("bench_lag").simulated
    second = 0.05
    step_s, longest_s = simulated(
        workers=workers, answers=16, answer_s=0.25 * second, verdict_s=second, update_s=3 * second, lag=1
    )
    assert step_s <= 1.15 * longest_s
    waiting_s, _ = simulated(
        workers=workers, answers=16, answer_s=0.25 * second, verdict_s=second, update_s=3 * second, lag=0, steps=2
    )
    assert waiting_s > 1.3 * step_s or workers == 1
