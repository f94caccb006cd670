"""A service in this process over a judge of fixed cost, for tests and measurements."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from kernel_coder.judge import JudgeConfig, Outcome, Verdict, example_verdict
from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.run.hashes import sha256_text
from kernel_coder.serve.app import create_app
from kernel_coder.serve.guard import HeaderTimeoutProtocol
from kernel_coder.serve.service import ServiceLimits
from kernel_coder.tasks.task import Task

REFERENCE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ..."


class StubJudge:
    """Every candidate is correct after `cost_s` seconds. A candidate with ``# harness`` gives harness_failed."""

    device, backend, profile = "cpu", None, "none"
    versions = {"stub": "1"}  # noqa: RUF012

    def __init__(self, cost_s: float = 0.0, workers: int = 2) -> None:
        self.config = JudgeConfig(workers=workers)
        self.cost_s = cost_s
        self.judged: list[tuple[str, str]] = []
        self.release = threading.Event()
        self.release.set()

    def evaluate(self, task: Task, candidate: str, backend: str | None = None) -> Verdict:
        self.release.wait(20)
        if self.cost_s:
            time.sleep(self.cost_s)
        self.judged.append((task.id, candidate))
        if "# crash" in candidate:
            raise RuntimeError("the judge is broken")
        outcome = Outcome.HARNESS_FAILED if "# harness" in candidate else Outcome.CORRECT
        return example_verdict(
            outcome,
            task=task.id,
            task_hash=sha256_text(task.reference),
            candidate_hash=sha256_text(candidate),
            backend=backend or task.backend,
        )

    def admit(self, task: Task) -> Admission:
        return Admission(task=task.id, task_hash=sha256_text(task.reference), admitted=True)

    def __enter__(self) -> StubJudge:
        return self

    def __exit__(self, *_: object) -> None: ...


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def served(
    judge: Any, *, port: int | None = None, token: str | None = None, max_header_s: float = 10.0, **limits: Any
) -> Iterator[str]:
    """The address of a service over this judge."""
    protocol = type("Protocol", (HeaderTimeoutProtocol,), {"max_header_s": max_header_s})
    app = create_app(judge, token=token, limits=ServiceLimits(**{"drain_s": 2.0, **limits}))
    port = port or free_port()
    config = uvicorn.Config(app, host="127.0.0.1", port=port, http=protocol, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < until, "the service did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the service did not end"
