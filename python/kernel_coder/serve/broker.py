"""The queue between HTTP requests and a judge. It is bounded and fair between clients; equal requests are judged once.

Everything here runs on one asyncio event loop; only ``judge.evaluate`` runs in threads.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kernel_coder.judge import Verdict
from kernel_coder.judge.supervisor.batching import AnyJudge
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import Task


class QueueFull(Exception):
    """The queue is full; the client should ask again later."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; ask again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Closing(Exception):
    """The service is shutting down and accepts no further request."""


@dataclass(eq=False)
class Job:
    """A candidate that is queued, being judged, or judged.

    Attributes:
        id: the request's content hash, see :func:`job_id`.
        client: the name under which the job waits; clients take turns.
        waiters: HTTP requests that wait for the verdict. A job that still waits in the queue and has lost its last
            waiter is dropped.
        verdict: set once, by the broker.
    """

    id: str
    task: Task
    candidate: str
    backend: str | None
    client: str
    waiters: int = 0
    is_running: bool = False
    verdict: asyncio.Future[Verdict] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def job_id(task: Task, candidate: str, backend: str | None) -> str:
    """Return the content hash of a request: equal requests have one id, and one verdict.

    >>> task = Task(id="relu", source="example", reference="...")
    >>> job_id(task, "a", None) == job_id(task, "a", None) != job_id(task, "b", None)
    True
    """
    parts = [task.id, task.reference, task.entry_point, task.backend, task.precision, candidate, backend]
    return sha256_text(json.dumps(parts))[:32]


class Broker:
    """Hands jobs to a judge, a fixed number at a time, and keeps the newest verdicts.

    Args:
        judge: an open judge. The broker never closes it.
        at_once: jobs that the judge works on at the same time.
        max_queued: jobs that may wait. For one more :class:`QueueFull` is raised.
        max_kept: verdicts that are kept for equal requests and for ``GET /v1/verdicts/{id}``. A verdict has about
            5 kB as JSON, so the default takes some 25 MB.
        on_verdict: called with each judged job and the seconds that judging took, for metrics.
    """

    def __init__(
        self,
        judge: AnyJudge,
        *,
        at_once: int,
        max_queued: int = 1000,
        max_kept: int = 5000,
        on_verdict: Callable[[Job, Verdict, float], None] | None = None,
    ) -> None:
        self.judge, self.at_once, self.max_queued, self.max_kept = judge, at_once, max_queued, max_kept
        self._on_verdict = on_verdict
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()  # by client; the first client is served next
        self._jobs: dict[str, Job] = {}  # queued or being judged, by id
        self._kept: OrderedDict[str, Verdict] = OrderedDict()
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="serve-judge")
        self._running: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._mean_s = 1.0  # moving mean of the seconds that a job takes, for Retry-After

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return sum(len(jobs) for jobs in self._waiting.values())

    @property
    def running(self) -> int:
        """Jobs that are being judged."""
        return len(self._running)

    def known(self, id: str) -> Verdict | Job | None:
        """Return the verdict of an earlier request, or its job if there is no verdict yet."""
        return self._kept.get(id) or self._jobs.get(id)

    def submit(self, task: Task, candidate: str, backend: str | None, client: str) -> Verdict | Job:
        """Return the verdict if an equal request was judged before; otherwise queue a job, or return that of an equal
        request.

        The caller waits with :meth:`wait`, or increments ``job.waiters`` itself and later calls :meth:`leave`.

        Raises:
            QueueFull: ``max_queued`` jobs wait already.
            Closing: the service is shutting down.
        """
        id = job_id(task, candidate, backend)
        if (kept := self._kept.get(id)) is not None:
            self._kept.move_to_end(id)
            return kept
        if (job := self._jobs.get(id)) is not None:
            return job
        if self._is_closing:
            raise Closing("the service is shutting down")
        if self.queued >= self.max_queued:
            raise QueueFull(max(self._mean_s * self.queued / self.at_once / 4, 1.0))
        job = Job(id, task, candidate, backend, client)
        self._jobs[id] = job
        self._waiting.setdefault(client, deque()).append(job)
        self._start_next()
        return job

    async def wait(self, job: Job, timeout_s: float | None = None) -> Verdict | None:
        """Return the job's verdict; None if it takes longer. A caller that is cancelled leaves the job."""
        job.waiters += 1
        try:
            return await asyncio.wait_for(asyncio.shield(job.verdict), timeout_s)
        except TimeoutError:
            return None
        finally:
            self.leave(job)

    def leave(self, job: Job) -> None:
        """Removes one waiter. A job that has no waiter left and has not begun is not judged."""
        job.waiters -= 1
        if job.waiters <= 0 and not job.is_running and not job.verdict.done():
            self._forget_waiting(job)

    def keep_without_waiters(self, job: Job) -> None:
        """Keeps a job whose verdict will be requested later: it is judged even if no request waits for it."""
        job.waiters += 1

    async def close(self, drain_s: float) -> None:
        """Accept no new job, finish the present ones within `drain_s` seconds, and abandon the others."""
        self._is_closing = True
        loop = asyncio.get_running_loop()
        until = loop.time() + drain_s
        while self._jobs and loop.time() < until:
            pending = [job.verdict for job in self._jobs.values()]
            await asyncio.wait(pending, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        for job in list(self._jobs.values()):
            job.verdict.cancel()
        self._waiting.clear()
        self._jobs.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_next(self) -> None:
        while len(self._running) < self.at_once and self._waiting:
            client, jobs = next(iter(self._waiting.items()))
            job = jobs.popleft()
            self._waiting.move_to_end(client)  # the other clients come first now
            if not jobs:
                del self._waiting[client]
            job.is_running = True
            running = asyncio.create_task(self._judge(job))
            self._running.add(running)
            running.add_done_callback(self._after)

    def _after(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._start_next()

    async def _judge(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            verdict = await loop.run_in_executor(
                self._threads, self.judge.evaluate, job.task, job.candidate, job.backend
            )
        except BaseException as error:
            self._jobs.pop(job.id, None)
            if not job.verdict.done():
                job.verdict.set_exception(error)
                job.verdict.exception()  # marks the exception as seen, since there may be no waiter left to see it
            return
        taken_s = loop.time() - began
        self._mean_s = 0.9 * self._mean_s + 0.1 * taken_s
        self._jobs.pop(job.id, None)
        if verdict.is_scored:  # after a failure of the harness, the next try may give a verdict
            self._kept[job.id] = verdict
            while len(self._kept) > self.max_kept:
                self._kept.popitem(last=False)
        if self._on_verdict is not None:
            self._on_verdict(job, verdict, taken_s)
        if not job.verdict.done():
            job.verdict.set_result(verdict)

    def _forget_waiting(self, job: Job) -> None:
        jobs = self._waiting.get(job.client)
        if jobs is not None and job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[job.client]
        self._jobs.pop(job.id, None)
        job.verdict.cancel()
