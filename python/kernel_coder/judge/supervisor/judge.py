"""The Supervisor starts, limits and kills the other processes, and makes verdicts from the Examiner's findings.

It never touches a GPU, runs no reference and no candidate, and decodes nothing that a candidate's process sends. A
failure that the candidate cannot have caused counts as the judge's; every other failure counts as the candidate's.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernel_coder import interpreter
from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.memory_estimates import WORKER_BYTES, most_workers
from kernel_coder.judge.gpu import nvml
from kernel_coder.judge.sandbox.config import SandboxConfig
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.supervisor import audit
from kernel_coder.judge.supervisor.admission import Admission, admission_of
from kernel_coder.judge.supervisor.batching import askers, verdicts_of
from kernel_coder.judge.supervisor.errors import ExaminerLost, HarnessError, TaskRefused
from kernel_coder.judge.supervisor.evaluation import Evaluation, format_problem, installed_versions
from kernel_coder.judge.supervisor.memory_gate import MemoryGate, may_lack_memory, tells_of_memory
from kernel_coder.judge.supervisor.processes import Processes
from kernel_coder.judge.supervisor.slot import Slot
from kernel_coder.judge.supervisor.worker_queue import WorkerQueue
from kernel_coder.judge.verdict import REFUSED, Outcome, Verdict
from kernel_coder.judge.wire.requests import Prepared
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import BACKENDS, SOLUTION_CLASS, Task

LOG = logging.getLogger(__name__)

MAX_PROBES = 3
"""Upper limit of the failed probes of a device, one after another, before the device is taken out of service."""

PROBE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * x
def get_inputs():
    return [torch.rand(8, 16)]
def get_init_inputs():
    return []
"""

TRITON_PROBE = """
import torch
import triton
import triton.language as tl
@triton.jit
def square(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, value * value, mask=at < n)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        square[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
"""
"""A solution of :data:`PROBE` for a judge that runs Triton kernels in the interpreter."""

OPENING_PROBES = 2
"""Number of attempts at the probe when a judge is opened. The second one is for a machine that is very busy."""

PROBE_CHECKS = {
    **{"checks": 1, "families": ("own",), "hidden_shapes": "off", "null_candidates": False},
    **{"backward": False, "training": None, "ablation": False, "profile": False, "min_kernel_share": 0.0},
    **{"timing": False, "compile_baseline": False},
}
"""Fields of the configuration for the probe at the opening. It tests only whether the judge's processes work, as fast
as possible."""

KILL_AGAIN_S = 0.1
"""Interval, in seconds, at which a judge that is closed at once kills Examiners for which threads still wait."""


def as_task(task: Task | str) -> Task:
    """Return the task itself, or a new task from the source of a reference.

    >>> as_task("class Model: ...").id == sha256_text("class Model: ...")[:12]
    True
    """
    if isinstance(task, Task):
        return task
    return Task(id=sha256_text(task)[:12], source="text", reference=task)


def _with_workers_that_fit(config: JudgeConfig, device: str) -> JudgeConfig:
    """Return the configuration with as many workers as a GPU's memory allows. Raise ValueError if it asks for more."""
    memory = nvml.memory(device)
    if memory is None or config.parallel() <= (most := most_workers(memory.total)):
        return config
    if config.workers is not None:
        raise ValueError(
            f"workers must be at most {most} on a GPU with {memory.total / 2**30:.0f} GiB of memory, because the CUDA"
            f" contexts of each take {WORKER_BYTES / 2**30:.1f} GiB; got {config.workers}"
        )
    return config.model_copy(update={"workers": most})


class Judge:
    """Judges candidates against tasks.

    ``with Judge(...)`` first judges a probe, a very simple task. So a machine on which nothing can be judged is refused
    at once, instead of failing for every candidate.

    >>> reference = '''
    ... import torch
    ... class Model(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * x + 1
    ... def get_inputs():
    ...     return [torch.rand(8, 16)]
    ... def get_init_inputs():
    ...     return []
    ... '''
    >>> candidate = reference.replace("class Model", "class ModelNew").replace("x * x + 1", "x.square() + 1")
    >>> with Judge(device="cpu", backend="torch") as judge:
    ...     judge.evaluate(reference, candidate).outcome, judge.evaluate(reference, "class ModelNew: x").outcome
    (<Outcome.CORRECT: 'correct'>, <Outcome.COMPILE_ERROR: 'compile_error'>)

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        backend: the language of candidates, unless a call names another; None: that of their task.
        config: the checks and the time limits.
        sandbox: the user that Runners run as, and the files that they may open. The layers that `config` requires are
            required in addition to those of `sandbox`.
        log: a file to print the sandbox's profile to at the start; None: it is not printed.

    Raises:
        ValueError: an unknown device or backend; the backend is Triton, and Triton is not installed, or its interpreter
            fails with the installed numpy; more workers than the GPU has memory for.
        SandboxError: this machine lacks a required layer of the sandbox, or the GPU does not exist. On entering the
            context: the probe cannot be judged.
    """

    def __init__(
        self,
        device: str = "cpu",
        backend: str | None = None,
        *,
        config: JudgeConfig | None = None,
        sandbox: SandboxConfig | None = None,
        log: Any = None,
    ) -> None:
        self.config = config or JudgeConfig()
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
            raise ValueError(f"device must be cpu, cuda or cuda:N; got {device!r}")
        if backend is not None and backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
        self._triton_problem = interpreter.problem_here() if kind == "cpu" else interpreter.missing_triton()
        if backend == "triton" and self._triton_problem:
            raise ValueError(self._triton_problem)
        self.device = kind if kind == "cpu" else f"cuda:{index or 0}"
        self.backend = backend
        if kind == "cuda":
            self.config = _with_workers_that_fit(self.config, self.device)
        self._processes = Processes(self.device, self.config, sandbox)
        self.profile = self._processes.profile
        if log is not None:
            print(f"sandbox:\n{self.profile}", file=log)
        self._slots = [Slot(self._processes, self._has_one_candidate) for _ in range(self.config.parallel())]
        self._queue = WorkerQueue(self._slots)
        self._memory_gate = MemoryGate()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        self._abandoned = False
        self._out_of_service = ""
        self._is_probed = False
        self.versions = installed_versions()
        self._owner = os.getpid()
        atexit.register(self._close_at_exit)

    # ---- the interface

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        """Judge one candidate. The result is always a verdict, even if the candidate hangs or the judge itself fails.

        Args:
            task: the task, or the source of a reference with ``Model``, ``get_inputs`` and ``get_init_inputs``.
            candidate: source with ``ModelNew``.
            backend: the language of the candidate; None: the judge's, or else the task's.

        Raises:
            ValueError: an unknown backend, or the judge is closed.
        """
        task = as_task(task)
        chosen = backend or self.backend or task.backend
        if chosen not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {chosen!r}")
        if self._closed:
            raise ValueError("the judge is closed")
        evaluation = self._evaluation(task, candidate, chosen)
        if (problem := format_problem(candidate, chosen)) is not None:
            return evaluation.verdict(problem[0], problem[1], compiled=False)
        if chosen == "cuda" and self.device == "cpu":
            return evaluation.verdict(Outcome.HARNESS_FAILED, "a CUDA candidate cannot be judged without a GPU")
        if chosen == "triton" and self._triton_problem:
            return evaluation.verdict(Outcome.HARNESS_FAILED, self._triton_problem)
        verdict, _ = self._judged(evaluation)
        if self.config.audit_dir:
            audit.write_record(self.config.audit_dir, task, candidate, verdict, self.config, self.profile)
        return verdict

    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]:
        """Judge several ``(task, candidate)`` or ``(task, candidate, backend)`` at a time. Yield verdicts in order.

        `pairs` may be a generator. It is read only as far as needed: at most twice as many candidates as there are
        workers are submitted at a time. Finished verdicts may wait for an earlier one.

        Args:
            pairs: the candidates to judge.
            progress: show a progress bar on stderr.
            total: the bar's length, if `pairs` has none.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(askers(self.device, self.config), thread_name_prefix="judge")
        return verdicts_of(self, pairs, self._threads, progress=progress, total=total)

    def admit(self, task: Task | str) -> Admission:
        """Check whether candidates can be judged on a task: the reference must pass, and null candidates must fail.

        If the judge fails, nothing is known about the task, and ``admitted`` is None.
        """
        task = as_task(task)
        source = f"{task.reference}\n\nModelNew = {task.entry_point}\n"
        evaluation = self._evaluation(task, source, "torch")
        evaluation.is_trusted = True
        verdict, prepared = self._judged(evaluation)
        return admission_of(task, verdict, prepared)

    def give_up_waiting(self) -> None:
        """Give up the candidates that wait for a worker in other threads. Their verdict is ``harness_failed``.

        Candidates that are being judged still get their verdict. A run that is being stopped calls this.
        """
        self._queue.dismiss()

    def close(self, *, wait: bool = True) -> None:
        """End all processes. Candidates that are being judged get their verdict first, unless `wait` is false."""
        if self._closed:
            return
        self._closed, self._abandoned = True, not wait
        atexit.unregister(self._close_at_exit)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._abandoned:
            self._queue.close()
        for _ in self._slots:
            self._idle_slot().close()
        if self._threads is not None:
            self._threads.shutdown()
        self._processes.close()

    def _close_at_exit(self) -> None:
        """Close a judge that was not closed before the process ends. In a fork of the process, do nothing."""
        if os.getpid() == self._owner:
            self.close(wait=False)

    def __enter__(self) -> Judge:
        if not self._is_probed:
            self._probe_at_opening()
            self._is_probed = True
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    # ---- how a candidate is judged

    def _evaluation(self, task: Task, candidate: str, backend: str) -> Evaluation:
        return Evaluation(task, candidate, backend, device=self.device, config=self.config, versions=self.versions)

    def _judged(self, evaluation: Evaluation) -> tuple[Verdict, Prepared | None]:
        """Return the verdict, and what the Examiner reported about the task.

        Candidates that are judged at the same time share the GPU's memory. A candidate that may have had too little of
        it is judged again while no other candidate is.
        """
        with self._memory_gate.shared():
            found = self._in_a_slot(evaluation)
        if self.device == "cpu" or self._closed or not may_lack_memory(found[0]):
            return found
        with self._memory_gate.alone():
            for slot in self._slots:
                slot.close()
            self._processes.await_retired()
            evaluation.is_alone = True
            return self._in_a_slot(evaluation)

    def _in_a_slot(self, evaluation: Evaluation) -> tuple[Verdict, Prepared | None]:
        slot = self._queue.take(evaluation.task_key)
        if slot is None:
            why = "the judge was closed" if self._closed else "it was given up before a worker was free"
            return evaluation.verdict(Outcome.HARNESS_FAILED, why), None
        try:
            evaluation.restart_clock()
            return self._evaluated(slot, evaluation), slot.prepared
        finally:
            self._queue.give_back(slot)

    def _evaluated(self, slot: Slot, evaluation: Evaluation) -> Verdict:
        """Return the verdict. If the judge itself fails, retry as often as configured.

        If GPU memory was short beside other candidates, do not retry here: :meth:`_judged` does it without others.
        """
        if self._out_of_service:
            return evaluation.verdict(Outcome.HARNESS_FAILED, self._out_of_service)
        failures: list[str] = []
        lost_with_candidate = 0
        for _ in range(self.config.retries + 1):
            try:
                return slot.examine(evaluation)
            except TaskRefused as refused:
                return evaluation.verdict(Outcome.HARNESS_FAILED, f"{REFUSED}{refused}")
            except Exception as error:
                if not isinstance(error, HarnessError | SandboxError | OSError):
                    LOG.exception("a bug of the judge")
                failures.append(str(error) or type(error).__name__)
                lost_with_candidate += slot.candidate_ran and isinstance(error, ExaminerLost)
                slot.close()
                if self._abandoned:
                    return evaluation.verdict(Outcome.HARNESS_FAILED, "the judge was closed")
                if self.device != "cpu" and not evaluation.is_alone and tells_of_memory(failures[-1]):
                    return evaluation.verdict(Outcome.HARNESS_FAILED, failures[-1])
        if lost_with_candidate > 1 and not evaluation.is_trusted:  # lost twice with this candidate, so it is the cause
            reason = f"the judge failed each time it ran: {failures[-1]}"
            return evaluation.verdict(Outcome.CRASHED, reason, compiled=False)
        self._probe_device(slot)
        return evaluation.verdict(Outcome.HARNESS_FAILED, failures[-1])

    def _probe_at_opening(self) -> None:
        """Judge the probe.

        Raises:
            SandboxError: the probe failed. The judge is closed.
        """
        task = Task(id="probe", source="judge", reference=PROBE)
        is_interpreted = self.device == "cpu" and self.backend in (None, "triton")
        if is_interpreted and not self._triton_problem:
            candidate, backend = TRITON_PROBE, "triton"
        else:
            candidate, backend = PROBE.replace("class Model", f"class {SOLUTION_CLASS}"), "torch"
        config = self.config.model_copy(update=PROBE_CHECKS)
        found = ""
        for _ in range(OPENING_PROBES):
            evaluation = Evaluation(task, candidate, backend, device=self.device, config=config, versions=self.versions)
            slot = self._queue.take(evaluation.task_key)
            if slot is None:
                return  # the judge is being closed
            try:
                verdict = slot.examine(evaluation)
                if verdict.outcome in (Outcome.CORRECT, Outcome.OUT_OF_MEMORY):
                    return
                found = verdict.reason or verdict.outcome.value
            except (TaskRefused, HarnessError, SandboxError, OSError) as error:
                found = str(error) or type(error).__name__
            finally:
                self._queue.give_back(slot)
            slot.close()
        self.close(wait=False)
        raise SandboxError(f"nothing can be judged on {self.device} here, not even the simplest of tasks: {found}")

    def _probe_device(self, slot: Slot) -> None:
        """Judge the probe after a failure. If it fails too, take the device out of service."""
        task = Task(id="probe", source="judge", reference=PROBE)
        candidate = PROBE.replace("class Model", f"class {SOLUTION_CLASS}")
        failures: list[str] = []
        while len(failures) < MAX_PROBES and not self._closed:
            try:
                verdict = slot.examine(self._evaluation(task, candidate, "torch"))
                if verdict.correct:
                    return
                failures.append(f"a product was {verdict.outcome}")
            except Exception as error:
                failures.append(str(error) or type(error).__name__)
                slot.close()
        if not self._closed:
            found = f"it failed a probe {MAX_PROBES} times ({failures[-1]})"
            self._out_of_service = f"{self.device} is out of service: {found}"
            LOG.critical("%s; every further verdict of this judge is a failure of the harness", self._out_of_service)

    def _has_one_candidate(self) -> bool:
        """Return whether exactly one candidate is being judged."""
        return self._queue.at_work == 1

    def _idle_slot(self) -> Slot:
        """Return the next slot without work. A judge that is closed at once interrupts the threads that use slots."""
        while self._abandoned:
            for slot in self._slots:
                slot.kill()
            if (found := self._queue.take_idle(KILL_AGAIN_S)) is not None:
                return found
        idle = self._queue.take_idle()
        assert idle is not None
        return idle
