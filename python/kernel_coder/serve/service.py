"""The objects that the routes share: the judge behind a queue, limits for clients, metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import HTTPException, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kernel_coder.judge import Verdict
from kernel_coder.judge.supervisor.batching import AnyJudge
from kernel_coder.serve.broker import Broker, Closing, Job, QueueFull
from kernel_coder.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Limits for the requests of a client.

    Attributes:
        max_body_bytes: largest size of a request's body. A batch of 100 tasks and candidates has about 1 MB.
        max_body_s: time, in seconds, within which a body must arrive.
        max_source_chars: longest reference or candidate. The judge itself refuses candidates of over half a MiB.
        max_queued: candidates that may wait for the judge; one more gets 429 with Retry-After.
        max_kept: verdicts that are kept for equal requests.
        max_wait_s: seconds that ``POST /v1/judge`` waits for a verdict before it answers 202 with the id.
        drain_s: time, in seconds, that a shutdown waits for candidates that are queued or being judged.
    """

    max_body_bytes: int = 16 << 20
    max_body_s: float = 20.0
    max_source_chars: int = 400_000
    max_queued: int = 1000
    max_kept: int = 5000
    max_wait_s: float = 900.0
    drain_s: float = 30.0


class Metrics:
    """Prometheus metrics of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.verdicts = Counter("kernel_coder_verdicts", "Verdicts by outcome", ["outcome"], registry=self.registry)
        self.seconds = Histogram(
            "kernel_coder_judging_seconds",
            "Seconds that a candidate was with the judge",
            buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
            registry=self.registry,
        )
        self.refused = Counter("kernel_coder_refused", "Requests refused by status", ["status"], registry=self.registry)
        self.queued = Gauge("kernel_coder_queued", "Candidates that wait", registry=self.registry)
        self.running = Gauge("kernel_coder_running", "Candidates that are with the judge", registry=self.registry)

    def count(self, job: Job, verdict: Verdict, taken_s: float) -> None:
        """Counts one verdict."""
        self.verdicts.labels(verdict.outcome.value).inc()
        self.seconds.observe(taken_s)

    def text(self, broker: Broker) -> bytes:
        """Return the metrics in Prometheus's format."""
        self.queued.set(broker.queued)
        self.running.set(broker.running)
        return generate_latest(self.registry)


class Service:
    """The judge, its queue and the metrics."""

    def __init__(self, judge: AnyJudge, limits: ServiceLimits, at_once: int) -> None:
        self.judge, self.limits, self.metrics = judge, limits, Metrics()
        self.broker = Broker(
            judge,
            at_once=at_once,
            max_queued=limits.max_queued,
            max_kept=limits.max_kept,
            on_verdict=self.metrics.count,
        )

    def submit(self, request: Request, task: Task, candidate: str, backend: str | None) -> Verdict | Job:
        """Queues a candidate under the client's name.

        Raises:
            HTTPException: 422 for a source that is too long, 429 for a full queue, 503 during a shutdown.
        """
        for name, text in (("task.reference", task.reference), ("candidate", candidate)):
            if len(text) > self.limits.max_source_chars:
                limit = self.limits.max_source_chars
                raise HTTPException(422, f"{name} may have at most {limit} characters; got {len(text)}")
        try:
            return self.broker.submit(task, candidate, backend, client_of(request))
        except QueueFull as full:
            self.metrics.refused.labels("429").inc()
            headers = {"Retry-After": str(round(full.retry_after_s))}
            raise HTTPException(429, str(full), headers=headers) from None
        except Closing as closing:
            raise HTTPException(503, str(closing), headers={"Retry-After": "5"}) from None

    async def verdict(self, request: Request, found: Verdict | Job, timeout_s: float) -> Verdict | None:
        """Waits for the verdict as long as the client is connected; None if it takes longer than `timeout_s`."""
        if isinstance(found, Verdict):
            return found
        gone = asyncio.create_task(_until_gone(request))
        waiting = asyncio.create_task(self.broker.wait(found, timeout_s))
        try:
            await asyncio.wait({gone, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise HTTPException(499, "the client closed the connection")
            return waiting.result()
        except asyncio.CancelledError:
            if found.verdict.cancelled():
                raise HTTPException(503, "the service was shut down before the verdict") from None
            raise
        finally:
            gone.cancel()
            waiting.cancel()


async def _until_gone(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.5)


def client_of(request: Request) -> str:
    """Return the name under which a client's candidates wait: the header ``X-Client-Id``, else the address."""
    named = request.headers.get("x-client-id", "")[:100]
    return named or (request.client.host if request.client else "")
