"""The config section of the vLLM engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernel_coder.run.config import Section

TransferKind = Literal["auto", "file", "nccl", "ipc"]


class VllmConfig(Section):
    """A vLLM server that writes the answers: one that runs already, or one that the run starts."""

    url: str | None = Field(
        default=None,
        description="address of a server that runs already, see kernel-coder serve-model; none: start one",
    )
    python: str | None = Field(
        default=None, description="interpreter that has vLLM, for a server that the run starts; none: this one"
    )
    gpus: str | None = Field(
        default=None,
        description="GPUs of a server that the run starts, such as 1 or 2,3 (more than one: tensor parallel); none: "
        "those that the run sees",
    )
    args: list[str] = Field(default=[], description="further arguments of vllm serve, for a server that the run starts")
    at_once: int = Field(default=64, ge=1, description="requests to the server at the same time")
    transfer: TransferKind = Field(
        default="auto",
        description="how new weights are sent to the server: file (in shared memory of this machine), nccl (between "
        "GPUs) or ipc (on one GPU; both need vLLM in this environment too); auto: file",
    )
    sleep: bool = Field(
        default=False, description="free the server's GPU memory while the run does not sample, so both can use one GPU"
    )
    tolerance: float | None = Field(
        default=None,
        gt=0,
        description="largest difference between a log-prob of the server and the run's own after new weights; none: "
        "1e-3 in float32, 0.02 in float16, 0.15 in bfloat16",
    )
    restarts: int = Field(
        default=2, ge=0, description="how often in a row to start the run's own server again after a failure"
    )
    start_timeout_s: float = Field(default=600.0, gt=0, description="time limit of the server's start, in seconds")
    answer_timeout_s: float = Field(
        default=600.0, gt=0, description="longest time without an answer while some are requested, in seconds"
    )
    update_timeout_s: float = Field(
        default=300.0, gt=0, description="time limit of each call that replaces weights, in seconds"
    )
