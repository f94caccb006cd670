"""The routes of KernelGYM's server, so that its clients work with this judge.

The names of the fields are those of KernelGYM's ``POST /evaluate`` and ``GET /results/{task_id}`` (read at commit
8822e52 of the fork L-hongbin/KernelGYM). Fields that control KernelGYM's own workers are accepted and ignored: the
number of trials is part of the judge's configuration here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from kernel_coder.judge import Outcome, Verdict
from kernel_coder.serve.broker import Job
from kernel_coder.serve.service import Service
from kernel_coder.tasks.task import BACKENDS, Task

MAX_KNOWN_TASKS = 10_000
"""Upper limit for the task ids that ``GET /results/{task_id}`` can find. An entry takes some 200 bytes."""

ERROR_CODES = {
    Outcome.FORMAT_ERROR: "VALIDATION_ERROR",
    Outcome.COMPILE_ERROR: "COMPILATION_ERROR",
    Outcome.RUNTIME_ERROR: "RUNTIME_ERROR",
    Outcome.WRONG_OUTPUT: "CORRECTNESS_ERROR",
    Outcome.TIMEOUT: "TIMEOUT_ERROR",
    Outcome.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    Outcome.CRASHED: "RUNTIME_ERROR",
    Outcome.REJECTED: "CORRECTNESS_ERROR",
    Outcome.HARNESS_FAILED: "SYSTEM_ERROR",
}


class EvaluationRequest(BaseModel):
    """A request as KernelGYM's clients send it. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    task_id: str = Field(min_length=1, max_length=100)
    reference_code: str = Field(min_length=10)
    kernel_code: str = Field(min_length=10)
    backend: str = "triton"
    entry_point: str = "Model"
    timeout: float = Field(default=300, ge=10, le=3600)


class EvaluationResponse(BaseModel):
    """A result as KernelGYM's clients read it; ``metadata`` holds the whole verdict."""

    task_id: str
    status: str
    compiled: bool | None = None
    correctness: bool | None = None
    decoy_kernel: bool | None = None
    reference_runtime: float | None = None
    kernel_runtime: float | None = None
    speedup: float | None = None
    metadata: dict[str, Any] | None = None
    error_message: str | None = None
    error_code: str | None = None


def response_of(task_id: str, verdict: Verdict) -> EvaluationResponse:
    """Return a verdict in KernelGYM's fields. A failure of the harness has the status ``failed``, which its reward code
    drops.

    >>> from kernel_coder.judge import example_verdict
    >>> found = response_of("a", example_verdict("correct", speedup=2.0))
    >>> found.status, found.correctness, found.speedup
    ('completed', True, 2.0)
    """
    return EvaluationResponse(
        task_id=task_id,
        status="completed" if verdict.is_scored else "failed",
        compiled=verdict.compiled,
        correctness=verdict.correct,
        decoy_kernel=verdict.outcome is Outcome.REJECTED,
        reference_runtime=verdict.reference_ms,
        kernel_runtime=verdict.runtime_ms,
        speedup=verdict.speedup,
        metadata={
            "outcome": verdict.outcome.value,
            "feedback": verdict.feedback,
            "speedup_low": verdict.speedup_low,
            "speedup_high": verdict.speedup_high,
            "custom_kernel_time_coverage": verdict.kernel_share,
            "device": verdict.device,
        },
        error_message=verdict.reason,
        error_code=ERROR_CODES.get(verdict.outcome),
    )


def kernelgym_routes(service: Callable[[], Service]) -> APIRouter:
    """Return the routes ``/evaluate``, ``/evaluate/batch``, ``/results/{task_id}`` and ``/status/{task_id}``."""
    routes = APIRouter(tags=["kernelgym"])
    ids: OrderedDict[str, str] = OrderedDict()  # task id -> the id of its job

    def submitted(body: EvaluationRequest, request: Request) -> Verdict | Job:
        backend = body.backend.lower()
        if backend not in BACKENDS:
            raise HTTPException(422, f"backend must be one of {', '.join(BACKENDS)}; got {body.backend}")
        task = Task(
            id=body.task_id,
            source="kernelgym",
            reference=body.reference_code,
            entry_point=body.entry_point,
            backend=backend,
        )
        found = service().submit(request, task, body.kernel_code, backend)
        if isinstance(found, Job):
            ids[body.task_id] = found.id
            while len(ids) > MAX_KNOWN_TASKS:
                ids.popitem(last=False)
        return found

    @routes.post("/evaluate")
    async def evaluate(body: EvaluationRequest, request: Request) -> EvaluationResponse:
        """Judge one candidate and wait for the verdict."""
        found = submitted(body, request)
        verdict = await service().verdict(request, found, service().limits.max_wait_s)
        if verdict is None:
            return EvaluationResponse(task_id=body.task_id, status="timeout", error_code="TIMEOUT_ERROR")
        return response_of(body.task_id, verdict)

    @routes.get("/results/{task_id}")
    async def results(task_id: str) -> EvaluationResponse:
        """Return the verdict of an earlier request."""
        known = service().broker.known(ids.get(task_id, ""))
        if known is None:
            raise HTTPException(404, f"there is no task {task_id}")
        if isinstance(known, Job):
            return EvaluationResponse(task_id=task_id, status="processing" if known.is_running else "pending")
        return response_of(task_id, known)

    @routes.get("/status/{task_id}")
    async def status(task_id: str) -> dict[str, str]:
        """Return the status of an earlier request."""
        return {"task_id": task_id, "status": (await results(task_id)).status}

    return routes
