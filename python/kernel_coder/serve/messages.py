"""Bodies of the service's requests and answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import Task

Backend = Literal["triton", "cuda", "cpp", "torch"]
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16"]


class TaskBody(BaseModel):
    """The task that a candidate has to compute. See :class:`kernel_coder.tasks.task.Task`."""

    model_config = ConfigDict(extra="forbid")

    reference: str = Field(min_length=1, description="Python source with Model, get_inputs and get_init_inputs")
    id: str | None = Field(default=None, max_length=300, description="None: the beginning of the reference's SHA-256")
    entry_point: str = Field(default="Model", description="the reference's class")
    backend: Backend = Field(default="triton", description="language of the candidate")
    precision: Precision = Field(default="fp32", description="the math mode of reference and candidate")

    def as_task(self) -> Task:
        return Task(
            id=self.id or sha256_text(self.reference)[:12],
            source="http",
            reference=self.reference,
            entry_point=self.entry_point,
            backend=self.backend,
            precision=self.precision,
        )

    @classmethod
    def of(cls, task: Task) -> TaskBody:
        """Return the body from which the service makes this task."""
        return cls.model_validate(
            {
                "reference": task.reference,
                "id": task.id,
                "entry_point": task.entry_point,
                "backend": task.backend,
                "precision": task.precision,
            }
        )


class JudgeBody(BaseModel):
    """One candidate to judge."""

    model_config = ConfigDict(extra="forbid")

    task: TaskBody
    candidate: str = Field(description="source with ModelNew, or a .cu or .cpp file with a function forward")
    backend: Backend | None = Field(default=None, description="None: the task's")
    wait: bool = Field(default=True, description="false: answer at once with the id, for GET /v1/verdicts/{id}")


class BatchBody(BaseModel):
    """Several candidates; verdicts come as lines of JSON in the order in which they are ready."""

    model_config = ConfigDict(extra="forbid")

    requests: list[JudgeBody] = Field(min_length=1, max_length=1000)


class AdmitBody(BaseModel):
    """A request to check whether candidates can be judged on a task."""

    model_config = ConfigDict(extra="forbid")

    task: TaskBody


class Pending(BaseModel):
    """A request that has no verdict yet."""

    id: str
    status: Literal["queued", "running"]


class Info(BaseModel):
    """A description of the service's judge."""

    device: str
    backend: str | None
    at_once: int
    config: dict[str, Any]
    versions: dict[str, str]
