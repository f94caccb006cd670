"""Worker processes that fork for each job, so that a crash or a hang ends only that job. The code must be trusted.

A worker imports torch and triton once and forks for each job, which takes about 10 ms. With TRITON_INTERPRET=1 kernels
run on the CPU. Inductor needs Triton's real compiler, so its jobs have other workers. A worker runs
``python -m kernel_coder.data.workers``, which reads and writes JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

Job = Mapping[str, Any]
JOBS_AHEAD = 4
"""Number of jobs per worker that are read ahead: enough to keep it busy, few enough to lose little when a build stops.
"""


class Workers:
    """A pool of workers.

    Args:
        count: number of processes.
        interpret: run Triton in its interpreter.
        timeout_s: time limit of a job, in seconds. A job that exceeds it or dies has the result ``{"failure": "..."}``.
    """

    def __init__(self, count: int, *, interpret: bool, timeout_s: float = 60.0) -> None:
        if count < 1:
            raise ValueError(f"workers must be at least 1; got {count}")
        self.count, self.interpret, self.timeout_s = count, interpret, timeout_s
        self._threads = ThreadPoolExecutor(count)
        self._free: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[str]] = []
        for _ in range(count):
            self._free.put(None)  # the first job starts the process

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._started:
            process.kill()
        self._threads.shutdown(wait=True)
        for process in self._started:
            with process:  # closes the pipes and waits for the process
                pass

    def map(self, jobs: Iterable[Job]) -> Iterator[dict[str, Any]]:
        """Yields the results in the order of the jobs, lazily."""
        waiting: deque[Future[dict[str, Any]]] = deque()
        for job in jobs:
            waiting.append(self._threads.submit(self._run, job))
            if len(waiting) >= JOBS_AHEAD * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _run(self, job: Job) -> dict[str, Any]:
        process = self._free.get() or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError, ValueError):
            process.stdin.write(json.dumps({**job, "timeout_s": self.timeout_s}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if line:
            self._free.put(process)
            result: dict[str, Any] = json.loads(line)
            return result
        process.kill()
        self._free.put(None)
        return {"failure": f"the worker ended with {process.wait()}"}

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": str(int(self.interpret))}
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "kernel_coder.data.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._started.append(process)
        return process


# In the worker --------------------------------------------------------------------------------------------------------


def _check(job: Job) -> dict[str, Any]:
    from kernel_coder.tasks.verify import check

    with tempfile.TemporaryDirectory() as folder:
        found = check(
            job["entry_point"],
            job["reference"],
            job["candidate"],
            Path(folder),
            new_name=job["new_name"],
            with_nan=job["with_nan"],
            with_other_inputs=job["with_other_inputs"],
            evaluation=job["evaluation"],
        )
    return {"error": found.error, "reason": found.reason}


def _lower(job: Job) -> dict[str, Any]:
    from kernel_coder.data.sizes import fitted
    from kernel_coder.tasks.inductor import lower
    from kernel_coder.tasks.readable import rewrite

    reference, name = job["reference"], job["entry_point"]
    if job["max_elements"] is not None:
        reference = fitted(reference, name, job["max_elements"])
    lowered = lower(reference, name)
    return {"reference": reference, "original": lowered.code, "code": rewrite(reference, name, lowered).code}


WARM_UP = {
    "entry_point": "Model",
    "reference": """import torch


class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, n)

    def forward(self, x):
        return torch.softmax(self.linear(x), dim=1)


def get_inputs():
    return [torch.rand(8, 8)]


def get_init_inputs():
    return [8]
""",
    "candidate": """import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n: tl.constexpr):
    i = tl.program_id(0) * n + tl.arange(0, n)
    x = tl.load(x_ptr + i)
    y = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + i, y / tl.sum(y, 0))


class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, n)

    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](self.linear(x), out, x.shape[1])
        return out
""",
}
"""A pair that makes torch, Inductor and the interpreter do their lazy imports and fill their caches."""


def _warm_up() -> None:
    """Runs a first job, so that its extra cost occurs once and not in every fork."""
    if os.environ.get("TRITON_INTERPRET") == "0":
        from kernel_coder.tasks.inductor import import_inductor

        import_inductor()
        _lower({**WARM_UP, "max_elements": 32})
    else:
        _check({**WARM_UP, "new_name": "ModelNew", "with_nan": False, "with_other_inputs": True, "evaluation": True})


JOBS: dict[str, Callable[[Job], dict[str, Any]]] = {"check": _check, "lower": _lower}


def _forked(job: Job) -> dict[str, Any]:
    """Runs the job in a child process. Returns its result, or the failure if the child dies or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(job, reading, writing)
    os.close(writing)
    chunks: list[bytes] = []
    hung = False
    with os.fdopen(reading, "rb") as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], job["timeout_s"])
            if not ready:
                hung = True
                os.kill(child, signal.SIGKILL)
                break
            if not (chunk := os.read(pipe.fileno(), 1 << 16)):
                break
            chunks.append(chunk)
    _, status = os.waitpid(child, 0)
    if hung:
        return {"failure": f"it took longer than {job['timeout_s']:g} s"}
    if not chunks:
        cause = signal.Signals(-code).name if (code := os.waitstatus_to_exitcode(status)) < 0 else f"exit {code}"
        return {"failure": f"its process died ({cause})"}
    result: dict[str, Any] = json.loads(b"".join(chunks))
    return result


def _in_child(job: Job, reading: int, writing: int) -> None:
    """Runs the job, writes its result, and exits without the parent's cleanup."""
    try:
        os.close(reading)
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            result = JOBS[job["kind"]](job)
        except Exception as error:  # a job can raise anything
            text = str(error).strip().splitlines() or [""]
            result = {"failure": f"{type(error).__name__}: {text[-1][:200]}"}
        data = json.dumps(result).encode()
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)


def main() -> None:
    import torch
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # Inductor's progress bars would start a thread, and forking needs a single thread
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with contextlib.suppress(Exception):  # each job reports the problem itself
        _warm_up()
    # Candidates may print to stdout, so the protocol uses its own descriptor.
    protocol = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        protocol.write(json.dumps(_forked(json.loads(line))) + "\n")
        protocol.flush()


if __name__ == "__main__":
    main()
