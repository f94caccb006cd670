"""The service's routes: a FastAPI application over an open judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

import kernel_coder
from kernel_coder.judge import Verdict
from kernel_coder.judge.supervisor.batching import AnyJudge, parallel
from kernel_coder.serve.broker import Broker, Job
from kernel_coder.serve.guard import Guard
from kernel_coder.serve.kernelgym import kernelgym_routes
from kernel_coder.serve.messages import AdmitBody, BatchBody, Info, JudgeBody, Pending
from kernel_coder.serve.service import Service, ServiceLimits
from kernel_coder.tasks.task import Task


def create_app(
    judge: AnyJudge, *, token: str | None = None, limits: ServiceLimits | None = None, at_once: int | None = None
) -> FastAPI:
    """Return the application. The judge must be open, and stays open.

    Args:
        judge: a Judge, a JudgePool, a Ray pool.
        token: the token that clients must send as ``Authorization: Bearer TOKEN``; None: no token is required.
        limits: limits for the requests of a client.
        at_once: candidates that are judged at the same time; None: as many as the judge allows.
    """
    limits = limits or ServiceLimits()
    at_once = at_once or parallel(judge.device, judge.config)
    holder: list[Service] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        holder.append(Service(judge, limits, at_once))
        try:
            yield
        finally:
            await holder.pop().broker.close(limits.drain_s)

    app = FastAPI(title="Kernel Coder judge", version=kernel_coder.__version__, lifespan=lifespan)
    app.add_middleware(Guard, token=token, max_body_bytes=limits.max_body_bytes, max_body_s=limits.max_body_s)

    def service() -> Service:
        return holder[0]

    _add_routes(app, service)
    app.include_router(kernelgym_routes(service))
    return app


def _add_routes(app: FastAPI, service: Callable[[], Service]) -> None:
    @app.post("/v1/judge", response_model=None)
    async def judge_one(body: JudgeBody, request: Request) -> Response:
        """Judge one candidate. Answers 200 with the verdict, or 202 with an id if it takes longer than the service
        waits."""
        serving = service()
        task = _task_of(body)
        found = serving.submit(request, task, body.candidate, body.backend)
        if not body.wait and isinstance(found, Job):
            serving.broker.keep_without_waiters(found)
            return JSONResponse(_pending(found).model_dump(), status_code=202)
        verdict = await serving.verdict(request, found, serving.limits.max_wait_s)
        if verdict is None:
            assert isinstance(found, Job)
            return JSONResponse(_pending(found).model_dump(), status_code=202)
        return _as_json(verdict)

    @app.post("/v1/judge/batch", response_model=None)
    async def judge_batch(body: BatchBody, request: Request) -> StreamingResponse:
        """Judge several. Each line is ``{"index": 3, "verdict": {...}}``, or ``{"index": 3, "detail": "..."}``."""
        serving = service()
        found: list[Verdict | Job] = []
        try:
            for one in body.requests:
                found.append(serving.submit(request, _task_of(one), one.candidate, one.backend))
                if isinstance(found[-1], Job):
                    serving.broker.keep_without_waiters(found[-1])
        except HTTPException:
            _leave_all(serving.broker, found)
            raise
        return StreamingResponse(_lines(serving.broker, found), media_type="application/x-ndjson")

    @app.get("/v1/verdicts/{id}", response_model=None)
    async def verdict(id: str) -> Response:
        """Return the verdict of an earlier request: 200; 202 if it is not judged yet; 404 if it is not or no longer
        known."""
        known = service().broker.known(id)
        if known is None:
            raise HTTPException(404, f"there is no verdict {id}")
        if isinstance(known, Job):
            return JSONResponse(_pending(known).model_dump(), status_code=202)
        return _as_json(known)

    @app.post("/v1/admit")
    async def admit(body: AdmitBody) -> dict[str, Any]:
        """Check whether candidates can be judged on a task."""
        loop = asyncio.get_running_loop()
        admission = await loop.run_in_executor(None, service().judge.admit, body.task.as_task())
        return {
            "task": admission.task,
            "task_hash": admission.task_hash,
            "admitted": admission.admitted,
            "reason": admission.reason,
            "families": list(admission.families),
            "skipped": dict(admission.skipped),
            "hidden_sizes": admission.hidden_sizes,
            "verdict": None if admission.verdict is None else json.loads(admission.verdict.to_json()),
        }

    @app.get("/v1/info")
    async def info() -> Info:
        """Return the judge's device, configuration and versions."""
        judge, at_once = service().judge, service().broker.at_once
        workers = max(at_once // len(judge.device.split(",")), 1)  # not the client's own number of cores
        return Info(
            device=judge.device,
            backend=judge.backend,
            at_once=at_once,
            config=judge.config.model_copy(update={"workers": workers}).model_dump(mode="json"),
            versions=judge.versions,
        )

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Answer if the service works, with the length of the queue. Needs no token."""
        broker = service().broker
        return {"status": "ok", "queued": broker.queued, "running": broker.running, "at_once": broker.at_once}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        return Response(service().metrics.text(service().broker), media_type="text/plain; version=0.0.4")


async def _lines(broker: Broker, found: list[Verdict | Job]) -> AsyncIterator[str]:
    """Yield a line for each verdict when it is reached. If the client disconnects, its candidates are abandoned."""
    places: dict[asyncio.Future[Verdict], list[int]] = {}
    for index, one in enumerate(found):
        if isinstance(one, Verdict):
            yield _line(index, one)
        else:
            places.setdefault(one.verdict, []).append(index)
    try:
        pending = set(places)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                for index in places[future]:
                    yield _line(index, future)
    finally:
        _leave_all(broker, found)


def _line(index: int, found: Verdict | asyncio.Future[Verdict]) -> str:
    if isinstance(found, asyncio.Future):
        if found.cancelled():
            return json.dumps({"index": index, "detail": "the service was shut down before the verdict"}) + "\n"
        if (error := found.exception()) is not None:
            return json.dumps({"index": index, "detail": str(error)}) + "\n"
        found = found.result()
    return f'{{"index": {index}, "verdict": {found.to_json()}}}\n'


def _leave_all(broker: Broker, found: list[Verdict | Job]) -> None:
    for one in found:
        if isinstance(one, Job):
            broker.leave(one)


def _task_of(body: JudgeBody) -> Task:
    try:
        return body.task.as_task()
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


def _pending(job: Job) -> Pending:
    return Pending(id=job.id, status="running" if job.is_running else "queued")


def _as_json(verdict: Verdict) -> Response:
    return Response(verdict.to_json(), media_type="application/json")
