"""Jobs that are done ahead of their use: their order, their ends, and how long a step takes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_coder.rollout import Conversation, Sampling, Turn, converse
from kernel_coder.rollout.copied_engine import LastUse
from kernel_coder.rollout.pipeline import Pipeline, PipelineClosed

Release = Callable[[], None]


def test_jobs_have_the_engine_one_after_another_in_order() -> None:
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


def test_numbers_follow_one_another_and_jobs_can_be_given_as_made() -> None:
    with Pipeline(lambda job, release, poll: job, depth=2, first=7) as pipeline:
        pipeline.put(7, "made earlier")
        pipeline.offer(8, "new")
        with pytest.raises(ValueError, match="the next is 9; got 8"):
            pipeline.offer(8, "again")
        assert [pipeline.look(7), pipeline.look(8), pipeline.look(7)] == ["made earlier", "new", "made earlier"]
        pipeline.drop(7)
        with pytest.raises(KeyError):
            pipeline.look(7)


def test_error_of_a_job_reaches_who_looks_and_the_next_job_goes_on() -> None:
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


def test_closing_abandons_jobs_in_progress_and_those_that_wait() -> None:
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


def test_waiting_can_be_stopped() -> None:
    release_job = threading.Event()

    def stop() -> None:
        raise KeyboardInterrupt

    with Pipeline(lambda job, release, poll: release_job.wait(5), depth=1) as pipeline:
        pipeline.offer(0, None)
        with pytest.raises(KeyboardInterrupt):
            pipeline.look(0, stop)
        release_job.set()


def test_engine_can_be_kept_from_the_jobs() -> None:
    with Pipeline(lambda job, release, poll: time.monotonic(), depth=1) as pipeline:
        with pipeline.engine():
            pipeline.offer(0, None)
            time.sleep(0.05)
            until = time.monotonic()
        assert pipeline.look(0) >= until


class SimulatedEngine:
    """Writes answers one after another, each in the same time."""

    tells_of_ends = True

    def __init__(self, answer_s: float) -> None:
        self.answer_s = answer_s

    def generate(
        self,
        prompts: Sequence[Any],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        poll: Callable[[], None] | None = None,
        ended: Callable[[int, Turn], None] | None = None,
    ) -> list[Turn]:
        turns = []
        for place, prompt in enumerate(prompts):
            time.sleep(self.answer_s)
            turns.append(Turn(tuple(prompt), (1,), (0.0,), "x", "stop"))
            if ended is not None:
                ended(place, turns[-1])
        return turns


def seconds_a_step(
    *, workers: int, answers: int, answer_s: float, verdict_s: float, update_s: float, lag: int, steps: int = 5
) -> tuple[float, float]:
    """Median duration of a step of a simulated run, and of its longest stage."""
    engine = SimulatedEngine(answer_s)
    with ThreadPoolExecutor(workers) as judge:

        def ask(task: Any, answer: str) -> Future[Any]:
            return judge.submit(time.sleep, verdict_s)

        def make(number: int, release: Release, poll: Release) -> int:
            opening: Any = SimpleNamespace(task=SimpleNamespace(id="t"), messages=({"role": "user", "content": "?"},))
            opening.ids = (1,)
            some = [Conversation(opening, lambda turn: turn) for _ in range(answers)]
            converse(LastUse(engine, answers, release), some, Sampling(max_completion_length=1), ask=ask, poll=poll)
            return number

        marks = [time.perf_counter()]
        with Pipeline(make, depth=lag + 1) as pipeline:
            for step in range(steps + 2):  # the first two fill the pipeline
                while pipeline.next <= min(step + lag, steps + 1):
                    pipeline.offer(pipeline.next, pipeline.next)
                assert pipeline.look(step) == step
                pipeline.drop(step)
                time.sleep(update_s)
                marks.append(time.perf_counter())
    durations = sorted(after - before for before, after in itertools.pairwise(marks[2:]))
    return durations[len(durations) // 2], max(answers * answer_s, answers * verdict_s / workers, update_s)


@pytest.mark.alone
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_step_at_lag_1_takes_hardly_longer_than_its_longest_stage(workers: int) -> None:
    """A twentieth of a second stands for a second; benchmarks/training/bench_lag.py takes whole seconds."""
    second = 0.05
    step_s, longest_s = seconds_a_step(
        workers=workers, answers=16, answer_s=0.25 * second, verdict_s=second, update_s=3 * second, lag=1
    )
    assert step_s <= 1.15 * longest_s
    waiting_s, _ = seconds_a_step(
        workers=workers, answers=16, answer_s=0.25 * second, verdict_s=second, update_s=3 * second, lag=0, steps=2
    )
    assert waiting_s > 1.3 * step_s or workers == 1
