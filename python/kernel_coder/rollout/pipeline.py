"""Does jobs in advance, in threads with one shared engine: it writes the answers of later steps during the present
step.

A job has two parts. In the first it has the engine to itself; jobs get the engine in the order of their numbers. In the
second it only waits, for example for verdicts, while the next job has the engine. The result of a job depends on its
number and its content, never on how long anything takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

POLL_S = 0.1
"""Upper limit for a wait between two calls of ``poll``, in seconds, so that a signal to stop is noticed this soon."""

Job = TypeVar("Job")
Made = TypeVar("Made")


class PipelineClosed(RuntimeError):
    """The pipeline was closed while a job was in progress."""


@dataclass(slots=True)
class Span:
    """The times, by ``time.perf_counter()``, at which a job got the engine, released it, and was finished."""

    begin: float = 0.0
    released: float = 0.0
    end: float = 0.0


class Pipeline(Generic[Job, Made]):
    """A pipeline of jobs with consecutive numbers.

    Args:
        make: does a job. Its arguments are the job, a function to call when it no longer needs the engine, and a
            function to call often, which raises if the work is to be abandoned.
        depth: jobs that may be in progress at the same time.
        first: number of the first job.
        begin_thread: called at the start of each thread.

    >>> with Pipeline(lambda job, release, poll: job * job, depth=2) as pipeline:
    ...     for number in range(3):
    ...         pipeline.offer(number, number)
    ...     [pipeline.look(number) for number in range(3)]
    [0, 1, 4]
    """

    def __init__(
        self,
        make: Callable[[Job, Callable[[], None], Callable[[], None]], Made],
        *,
        depth: int,
        first: int = 0,
        begin_thread: Callable[[], None] | None = None,
    ) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(depth, "ahead", initializer=begin_thread)
        self._futures: dict[int, Future[Made]] = {}
        self._spans: dict[int, Span] = {}
        self._turn, self._turns = first, threading.Condition()
        self._is_closed = False
        self._engine = threading.Lock()
        self._next = first

    @property
    def next(self) -> int:
        """The number of the next job to offer."""
        return self._next

    def offer(self, number: int, job: Job) -> None:
        """Begins a job as soon as the earlier ones have released the engine. Numbers must be consecutive."""
        self._check_number(number)
        self._spans[number] = Span()
        self._futures[number] = self._pool.submit(self._run, number, job)

    def put(self, number: int, made: Made) -> None:
        """Adds an earlier result in place of a job with this number."""
        self._check_number(number)
        now = time.perf_counter()
        self._spans[number] = Span(now, now, now)
        self._futures[number] = Future()
        self._futures[number].set_result(made)
        with self._turns:
            self._turn = number + 1

    def look(self, number: int, poll: Callable[[], None] = lambda: None) -> Made:
        """Waits for a job and returns its result."""
        while True:
            poll()
            try:
                return self._futures[number].result(POLL_S)
            except NotYet:
                if self._futures[number].done():  # the job itself raised a TimeoutError
                    raise

    def span(self, number: int) -> Span:
        """Return the times of a job."""
        return self._spans[number]

    def drop(self, number: int) -> None:
        """Removes a job, which must be finished."""
        del self._futures[number], self._spans[number]

    @contextmanager
    def engine(self) -> Iterator[None]:
        """Takes the engine for the block, so that no job can use it."""
        with self._engine:
            yield

    def close(self) -> None:
        """Abandons all jobs and waits until they have ended."""
        with self._turns:
            self._is_closed = True
            self._turns.notify_all()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Pipeline[Job, Made]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_number(self, number: int) -> None:
        if number != self._next:
            raise ValueError(f"jobs have consecutive numbers: the next is {self._next}; got {number}")
        self._next += 1

    def _run(self, number: int, job: Job) -> Made:
        span = self._spans[number]
        with self._turns:
            self._turns.wait_for(lambda: self._is_closed or self._turn == number)
            self._poll()
        self._engine.acquire()
        span.begin = time.perf_counter()
        holds = True

        def release() -> None:
            nonlocal holds
            if holds:
                holds = False
                span.released = time.perf_counter()
                self._engine.release()
                with self._turns:
                    self._turn = number + 1
                    self._turns.notify_all()

        try:
            return self._make(job, release, self._poll)
        finally:
            release()
            span.end = time.perf_counter()

    def _poll(self) -> None:
        if self._is_closed:
            raise PipelineClosed("the pipeline was closed")
