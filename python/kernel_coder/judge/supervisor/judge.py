"""The Supervisor: starts, limits and kills the other two, and makes verdicts of what the Examiner found.

It never touches a GPU, runs no reference and no candidate, and decodes nothing that a candidate's process sends. What a
candidate cannot be blamed for is the harness's failure; a death that it can cause is its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import socket
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from typing import Any

from kernel_coder import interpreter
from kernel_coder.judge import feedback
from kernel_coder.judge.config import BUILDS, JudgeConfig
from kernel_coder.judge.examiner.source_checks import speaks_of_streams
from kernel_coder.judge.gpu import nvml
from kernel_coder.judge.gpu.turns import PATIENCE_S
from kernel_coder.judge.runner import native
from kernel_coder.judge.runner.side_streams import CONNECTIONS, OWN_CONNECTIONS
from kernel_coder.judge.runner.side_streams import VARIABLE as QUEUES
from kernel_coder.judge.runner.triton_cache import VARIABLE as BUILT
from kernel_coder.judge.runner.triton_cache import TritonCache
from kernel_coder.judge.sandbox.fork_server import ForkServer
from kernel_coder.judge.sandbox.sandbox import (
    DEFAULT_REQUIRED,
    Ended,
    Limits,
    Process,
    Sandbox,
    SandboxConfig,
    SandboxError,
)
from kernel_coder.judge.supervisor.admission import Admission
from kernel_coder.judge.supervisor.batching import askers, verdicts_of
from kernel_coder.judge.supervisor.room import Room
from kernel_coder.judge.supervisor.worker_queue import Places
from kernel_coder.judge.verdict import MAX_FEEDBACK, Outcome, OutputError, Verdict
from kernel_coder.judge.wire.channel import Channel, ChannelClosed, ChannelTimeout, ProtocolBreach, SharedBuffer
from kernel_coder.judge.wire.messages import AFTERWARDS_S, READY, Say
from kernel_coder.run.hashes import sha256_text
from kernel_coder.tasks.task import BACKENDS, SOLUTION_CLASS, Task, parse

LOG = logging.getLogger(__name__)
MESSAGE_BYTES = 1 << 20

CANDIDATE_BYTES = MESSAGE_BYTES // 2
"""Of a candidate as JSON, which is part of such a message."""

PREPARE_S = 120.0
"""A task that takes longer to make ready than this is refused; waiting for a GPU's memory does not count."""

COMPILE_S = 150.0
"""More, where the reference is compiled too."""

BASELINE_S = 150.0
"""What the reference's own process may take until it has been timed without a candidate."""

GRACE_S = 20.0
"""What the Examiner may take beyond a candidate's life before it counts as hung."""

LARGE = 1 << 30
"""Bytes of a task's shared memory from which on a candidate's process is waited for, so that its memory is free."""

RECYCLE = 200
"""Tasks after which an Examiner is replaced, whatever its health."""

PROBES = 3
"""Times in a row that a device may fail at the simplest of tasks before nothing more is judged on it."""

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

MEMORY = re.compile(
    r"out of memory|OutOfMemory|OUT_OF_MEMORY|no room for a shared buffer|ALLOC(ATION)?_FAILED|STATUS_NOT_INITIALIZED"
)
"""In the reason of a verdict that might be another one where more of the GPU's memory is free."""

PROCESSES = 256
"""Processes and threads that a candidate may have: several times what a build needs, or on a GPU one that builds
nothing. So many that are busy without end leave neighbours their share of the cores."""

EXAMINER = "kernel_coder.judge.examiner.service:main"
RUNNER = "kernel_coder.judge.runner.process:main"
TRITON = ("triton", "triton.language", "triton.runtime.interpreter", "triton.compiler.compiler")
WARM_TRITON = "kernel_coder.judge.runner.warm_triton"
WARM = (
    "torch",
    "kernel_coder.judge.examiner.service",
    "kernel_coder.judge.runner.process",
    "kernel_coder.judge.examiner.timing.timer",
)

STARTING, START_S = 4, 30.0
"""Runners started ahead that may lack their GPU's context at a time, and how long each may take for it. The driver
makes contexts one after another, and whoever asks it for anything else meanwhile waits for all that are under way."""

GLOBAL = ("torch.backends", "torch.set_", "default_dtype", "default_device")
"""A reference that says this may change what others compute: processes that have run it are for no other task."""


class HarnessError(Exception):
    """The judge's own failure: nothing is known about the candidate."""


class ExaminerLost(HarnessError):
    """The Examiner died, hung or ran out of memory, or the reference failed when it was timed, which a candidate might
    bring about."""


class TaskRefused(Exception):
    """Nothing can be judged on this task; the reason is the text."""


def as_task(task: Task | str) -> Task:
    """A task, or the source of one.

    >>> as_task("class Model: ...").id == sha256_text("class Model: ...")[:12]
    True
    """
    if isinstance(task, Task):
        return task
    return Task(id=sha256_text(task)[:12], source="text", reference=task)


class Judge:
    """Judges candidates against tasks.

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
        backend: what candidates are written in, where a call does not say; None: what their task says.
        config: what is checked, and for how long.
        sandbox: who runners are and what they may open; its `require` is taken from `config` if that names layers.
        log: where the sandbox's profile is printed at the start; None: nowhere.

    Raises:
        ValueError: an unknown device or backend; Triton on the CPU with a numpy that its interpreter fails with.
        SandboxError: the machine cannot be made safe enough, or a GPU that is not there.
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
        self._no_interpreter = interpreter.problem_here() if kind == "cpu" else None
        if backend == "triton" and self._no_interpreter:
            raise ValueError(self._no_interpreter)
        self.device = kind if kind == "cpu" else f"cuda:{index or 0}"
        self.backend = backend
        gpu = None if kind == "cpu" else int(index or 0)
        self.visible = ""
        if gpu is not None:  # CUDA counts GPUs in its own way; nodes and identities are the driver's
            node, identity = nvml.minor_number(gpu), nvml.uuid(gpu)
            self.visible = identity or str(gpu)
            gpu = gpu if node is None else node
        require = frozenset(self.config.require) if self.config.require is not None else DEFAULT_REQUIRED
        base = sandbox or SandboxConfig()
        self._built: TritonCache | None = None
        if gpu is not None and _has_triton():
            self._built = TritonCache(self.environment(interpreted=False))
            base = replace(base, readable=(*base.readable, self._built.folder))
        try:
            self._sandbox = Sandbox(replace(base, require=base.require | require if sandbox else require, gpu=gpu))
            # Where a GPU needs sockets of its own, the filter lets nobody send descriptors; the Examiner, which runs no
            # candidate, has to.
            trusted = replace(self._sandbox.config, require=frozenset(), without=base.without | {"seccomp"})
            self.examiners = self._sandbox if gpu is None else Sandbox(trusted)
        except BaseException:
            if self._built is not None:
                self._built.close()
            raise
        self.profile = self._sandbox.profile
        if log is not None:
            print(f"sandbox:\n{self.profile}", file=log)
        self._servers: dict[bool, ForkServer] = {}
        self._servers_lock = threading.Lock()
        self._slots = [_Slot(self, number) for number in range(self.config.parallel())]
        self._places = Places(self._slots)
        self._room = Room()
        self._aside = ThreadPoolExecutor(self.config.parallel(), thread_name_prefix="judge-aside")
        self._starting = ThreadPoolExecutor(self.config.parallel(), thread_name_prefix="judge-start")
        self.contexts = threading.Semaphore(STARTING)
        self._leaving: set[Future[None]] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._abandoned = False
        self._out_of_service = ""
        self.lock_path = ""
        if gpu is not None:
            self.lock_path = os.path.join(tempfile.gettempdir(), f"kernel_coder-{os.geteuid()}-gpu{gpu}.lock")
            os.close(os.open(self.lock_path, os.O_CREAT | os.O_RDWR, 0o666))
        self.versions = _versions()

    # ---- the interface

    def evaluate(self, task: Task | str, candidate: str, backend: str | None = None) -> Verdict:
        """Judge one candidate. Always a verdict: also of a candidate that hangs or dies, also when the harness fails.

        Args:
            task: what the candidate has to compute; or the source of a reference with ``Model``, ``get_inputs`` and
                ``get_init_inputs``.
            candidate: source with ``ModelNew``.
            backend: what it is written in; None: the judge's, else the task's.

        Raises:
            ValueError: an unknown backend, or a judge that is closed.
        """
        task = as_task(task)
        chosen = backend or self.backend or task.backend
        if chosen not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {chosen!r}")
        if self._closed:
            raise ValueError("the judge is closed")
        maker = _Maker(self, task, candidate, chosen)
        if (problem := _format_problem(candidate, chosen)) is not None:
            return maker.verdict(problem[0], problem[1], compiled=False)
        if chosen == "cuda" and self.device == "cpu":
            return maker.verdict(Outcome.HARNESS_FAILED, "a CUDA candidate cannot be judged without a GPU")
        if chosen == "triton" and self._no_interpreter:
            return maker.verdict(Outcome.HARNESS_FAILED, self._no_interpreter)
        verdict, _ = self._judged(maker)
        if self.config.audit_dir:
            self._record(task, candidate, verdict)
        return verdict

    def _judged(self, maker: _Maker) -> tuple[Verdict, dict[str, Any]]:
        """The verdict and the task's facts.

        Candidates that are judged at the same time share the GPU's memory. One that finds too little of it is judged
        again, when nobody else holds any.
        """
        with self._room.shared():
            found = self._in_a_slot(maker)
        if self.device == "cpu" or self._closed or not _may_want_memory(found[0]):
            return found
        with self._room.alone():
            for slot in self._slots:
                slot.close()
            self._await_leaving()
            return self._in_a_slot(maker)

    def _in_a_slot(self, maker: _Maker) -> tuple[Verdict, dict[str, Any]]:
        slot = self._places.take(maker.key)
        if slot is None:
            why = "the judge was closed" if self._closed else "it was given up before a worker was free"
            return maker.verdict(Outcome.HARNESS_FAILED, why), {}
        try:
            maker.started = time.monotonic()
            return self._evaluated(slot, maker), slot.facts
        finally:
            self._places.give_back(slot)

    def _evaluated(self, slot: _Slot, maker: _Maker) -> Verdict:
        if self._out_of_service:
            return maker.verdict(Outcome.HARNESS_FAILED, self._out_of_service)
        failures: list[str] = []
        with_candidate = 0
        for _ in range(self.config.retries + 1):
            try:
                return slot.examine(maker)
            except TaskRefused as refused:
                return maker.verdict(Outcome.HARNESS_FAILED, f"the task is refused: {refused}")
            except Exception as error:
                if not isinstance(error, HarnessError | SandboxError | OSError):
                    LOG.exception("a bug of the judge")
                failures.append(str(error) or type(error).__name__)
                with_candidate += slot.candidate_ran and isinstance(error, ExaminerLost)
                slot.close()
                if self._abandoned:
                    return maker.verdict(Outcome.HARNESS_FAILED, "the judge was closed")
        if with_candidate > 1:  # who takes the judge down twice does it on purpose, or might as well
            return maker.verdict(Outcome.CRASHED, f"the judge failed each time it ran: {failures[-1]}", compiled=False)
        self._probe_device(slot)
        return maker.verdict(Outcome.HARNESS_FAILED, failures[-1])

    def _probe_device(self, slot: _Slot) -> None:
        """After a failure: a device that does not get through the simplest of tasks either is given up."""
        task = Task(id="probe", source="judge", reference=PROBE)
        candidate = PROBE.replace("class Model", f"class {SOLUTION_CLASS}")
        failures: list[str] = []
        while len(failures) < PROBES and not self._closed:
            try:
                verdict = slot.examine(_Maker(self, task, candidate, "torch"))
                if verdict.correct:
                    return
                failures.append(f"a product was {verdict.outcome}")
            except Exception as error:
                failures.append(str(error) or type(error).__name__)
                slot.close()
        if not self._closed:
            self._out_of_service = f"{self.device} is out of service: it failed a probe {PROBES} times ({failures[-1]})"
            LOG.critical("%s; every further verdict of this judge is a failure of the harness", self._out_of_service)

    def evaluate_many(
        self, pairs: Iterable[Sequence[Any]], *, progress: bool = False, total: int | None = None
    ) -> Iterator[Verdict]:
        """Judge ``(task, candidate)`` or ``(task, candidate, backend)``, several at a time; verdicts in order.

        Takes from `pairs` no more than twice what it works on, and what waits for a verdict before it; so they may be
        made on the way.
        """
        return verdicts_of(self, pairs, self._workers(), progress=progress, total=total)

    def admit(self, task: Task | str) -> Admission:
        """Whether candidates can be judged on a task: those that compute nothing must fail, the reference pass."""
        task = as_task(task)
        known: dict[str, Any] = {"task": task.id, "task_hash": sha256_text(task.reference)}
        source = f"{task.reference}\n\nModelNew = {task.entry_point}\n"
        verdict, facts = self._judged(_Maker(self, task, source, "torch"))
        known |= {
            "families": tuple(facts.get("families", ())),
            "skipped": facts.get("skipped", {}),
            "hidden_sizes": facts.get("hidden_sizes"),
        }
        if verdict.outcome is Outcome.HARNESS_FAILED:
            return Admission(**known, admitted=False, reason=verdict.reason)
        if not verdict.correct:
            why = (
                "it is too large for this device" if _short_of_memory(verdict) else "the reference itself does not pass"
            )
            reason = f"{why}: {verdict.reason}"
            return Admission(**known, admitted=False, reason=reason, verdict=verdict)
        return Admission(**known, admitted=True, verdict=verdict)

    def give_up_waiting(self) -> None:
        """Give up the candidates that wait for a worker, in other threads: their verdict is the harness's failure.

        Those that are being judged come to their end. For a run that is stopped.
        """
        self._places.send_away()

    def close(self, *, wait: bool = True) -> None:
        """End every process. Verdicts that are being made come first; without `wait` they are given up."""
        if self._closed:
            return
        self._closed, self._abandoned = True, not wait
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self._abandoned:
            self._places.close()
        for _ in self._slots:
            self._idle_slot().close()
        self._await_leaving()
        self._aside.shutdown()
        self._starting.shutdown()
        if self._pool is not None:
            self._pool.shutdown()
        for server in self._servers.values():
            server.close()
        if self._built is not None:
            self._built.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    # ---- processes

    def _idle_slot(self) -> _Slot:
        """The next slot that nobody works with, or, where verdicts are given up, that nobody can work with any more."""
        while self._abandoned:
            for slot in self._slots:
                slot.kill()
            if (found := self._places.take_idle(0.1)) is not None:
                return found
        idle = self._places.take_idle()
        assert idle is not None
        return idle

    def start_ahead(self, start: Callable[[], Started | None]) -> Future[Started | None]:
        """A Runner that no candidate waits for yet."""
        return self._starting.submit(start)

    @property
    def is_alone(self) -> bool:
        """One candidate is being judged, so that nothing need go on beside its timing."""
        return self._places.at_work == 1

    def retire(self, process: Process) -> Future[None]:
        """Kill a candidate's tree; nobody waits here for its end, which takes a while where a GPU's context is."""
        process.kill()
        leaving: Future[None] = self._aside.submit(process.close)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._left)
        return leaving

    def lock(self, stack: contextlib.ExitStack) -> list[int]:
        """Of the GPU, if there is one: opened anew, so that it is free again whatever happens to who gets it."""
        if not self.lock_path:
            return []
        fd = os.open(self.lock_path, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        return [fd]

    def _left(self, leaving: Future[None]) -> None:
        self._leaving.discard(leaving)
        if (error := leaving.exception()) is not None:
            LOG.error("a candidate's process: %s", error)

    def _await_leaving(self) -> None:
        futures.wait(tuple(self._leaving))

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(askers(self.device, self.config), thread_name_prefix="judge")
        return self._pool

    def server(self, interpreted: bool) -> ForkServer:
        """The warm parent: with Triton's interpreter, or without."""
        with self._servers_lock:
            if interpreted not in self._servers:
                modules = [*WARM, *(TRITON if _has_triton() else ())]
                if _has_triton() and (interpreted or self.visible or self.config.compile_for):
                    modules.append(WARM_TRITON)
                self._servers[interpreted] = ForkServer(
                    self._sandbox, modules, environment=self.environment(interpreted)
                )
            return self._servers[interpreted]

    def environment(self, interpreted: bool, connections: int = CONNECTIONS) -> dict[str, str]:
        own = {"OMP_NUM_THREADS": str(self.config.threads), "TORCHINDUCTOR_COMPILE_THREADS": "1", "MAX_JOBS": "2"}
        here = os.path.dirname(sys.executable)  # where ninja is
        own["PATH"] = f"{here}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"
        if interpreted:
            own["TRITON_INTERPRET"] = "1"
        own["CUDA_VISIBLE_DEVICES"] = self.visible
        if self.visible:
            own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            own[QUEUES] = str(connections)
        if self._built is not None:
            own[BUILT] = self._built.folder
        for name in ("CUDA_HOME", "LD_LIBRARY_PATH"):  # where the toolkit is, not what it does
            if name in os.environ:
                own[name] = os.environ[name]
        return own

    def limits(self, life_s: float | None, backend: str = "torch") -> Limits:
        memory = self.config.memory_bytes
        active = self.profile.active
        return Limits(
            wall_s=None if life_s is None or self.lock_path else life_s + GRACE_S,  # who knows how long it has to wait
            memory_bytes=memory if "memory_cgroup" in active else None,
            data_bytes=memory if "memory_cgroup" not in active and self.device == "cpu" else None,
            processes=PROCESSES if backend in BUILDS or self.device == "cpu" else PROCESSES // 2,
            work_bytes=(4 << 30) if backend in BUILDS else (1 << 30),
        )

    def _record(self, task: Task, candidate: str, verdict: Verdict) -> None:
        """All that it takes to judge this answer again."""
        assert self.config.audit_dir is not None
        os.makedirs(self.config.audit_dir, exist_ok=True)
        name = f"{verdict.task_hash[:12]}-{verdict.candidate_hash[:12]}-{time.time_ns()}.json"
        record = {
            "task": {"id": task.id, "reference": task.reference, "entry_point": task.entry_point}
            | {"precision": task.precision, "backend": verdict.backend},
            "candidate": candidate,
            "config": self.config.model_dump(mode="json"),
            "sandbox": self.profile.as_dict(),
            "verdict": json.loads(verdict.to_json()),
        }
        path = os.path.join(self.config.audit_dir, name)
        with open(f"{path}.part", "w") as file:
            json.dump(record, file)
        os.replace(f"{path}.part", path)


def _short_of_memory(verdict: Verdict) -> bool:
    """Also of a task that is refused for it, and of an Examiner that has failed for it."""
    return verdict.outcome is Outcome.OUT_OF_MEMORY or MEMORY.search(verdict.reason or "") is not None


def _may_want_memory(verdict: Verdict) -> bool:
    """Where the GPU's memory is full, a profiler that cannot hold its records says nothing of it."""
    return _short_of_memory(verdict) or feedback.UNRECORDED in (verdict.reason or "")


def _has_triton() -> bool:
    import importlib.util

    return importlib.util.find_spec("triton") is not None


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("kernel-coder", "torch", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _format_problem(candidate: str, backend: str) -> tuple[Outcome, str] | None:
    """What is wrong with a text that nobody has to run to see it."""
    if not candidate.strip():
        return Outcome.FORMAT_ERROR, "the answer has no code"
    if (size := len(json.dumps(candidate))) > CANDIDATE_BYTES:
        why = f"the code is too long: {size} bytes as JSON, and at most {CANDIDATE_BYTES} are judged"
        return Outcome.FORMAT_ERROR, why
    if native.is_native(candidate, backend):
        problem = native.problem_of(candidate)
        return None if problem is None else (Outcome.FORMAT_ERROR, problem)
    tree = parse(candidate)
    if isinstance(tree, str):
        return Outcome.COMPILE_ERROR, f"the code does not parse: {tree}"
    if SOLUTION_CLASS not in candidate:
        return Outcome.FORMAT_ERROR, f"the code defines no class {SOLUTION_CLASS}"
    return None


class _Maker:
    """Makes the verdict of one candidate."""

    def __init__(self, judge: Judge, task: Task, candidate: str, backend: str) -> None:
        self.judge, self.task, self.candidate, self.backend = judge, task, candidate, backend
        self.interpreted = judge.device == "cpu" and backend == "triton"
        self.device = judge.device
        self.key = task.reference, task.entry_point, task.precision
        self.started = time.monotonic()
        self.prepared_s = 0.0

    def request(self) -> dict[str, Any]:
        task, config = self.task, self.judge.config
        if self.interpreted:
            config = config.model_copy(update={"timing": False})
        return {
            "do": "prepare",
            "task": {
                "reference": task.reference,
                "entry_point": task.entry_point,
                "precision": task.precision,
                "families": task.metadata.get("input_families"),
            },
            "config": config.model_dump(mode="json"),
            "device": "cpu" if self.judge.device == "cpu" else "cuda:0",  # the only one that it sees
            "backend": self.backend,
            "timed": config.timing and config.timed_calls > 0,
        }

    def verdict(
        self, outcome: Outcome, reason: str | None = None, told: str | None = None, compiled: bool = False, **found: Any
    ) -> Verdict:
        if outcome is Outcome.HARNESS_FAILED:
            told = ""
        text = reason if told is None else told
        return Verdict(
            outcome=outcome,
            compiled=compiled,
            reason=reason,
            feedback=feedback.bounded(text or "", MAX_FEEDBACK) if text else "",
            task=self.task.id,
            task_hash=sha256_text(self.task.reference),
            candidate_hash=sha256_text(self.candidate),
            backend=self.backend,
            device=self.device,
            interpreted=self.interpreted,
            versions=self.judge.versions,
            **found,
        )

    def of_findings(self, found: dict[str, Any], ended: Ended | None) -> Verdict:
        outcome = Outcome(found["outcome"])
        reason, told, compiled = found.get("reason"), found.get("feedback"), found["compiled"]
        if outcome is Outcome.CRASHED and ended is not None:
            if ended.out_of_memory:
                outcome = Outcome.OUT_OF_MEMORY
            elif ended.ended_by == "wall_limit":
                outcome = Outcome.TIMEOUT
            reason = f"its process ended before it had answered: {ended.reason}"
            told = f"{'ModelNew' if compiled else 'The code'} ended its process ({ended.reason})."
        speed = {name: found[name] for name in _TIMES if name in found} if outcome is Outcome.CORRECT else {}
        if outcome is Outcome.CORRECT:
            told = feedback.success(**{name: found.get(name) for name in feedback.OF_SUCCESS})
        return self.verdict(
            outcome,
            reason,
            told,
            compiled,
            errors=tuple(OutputError(**one) for one in found["errors"]),
            seeds=tuple(found["seeds"]),
            stage_s={"prepare": self.prepared_s, **found["stage_s"], "all": time.monotonic() - self.started},
            kernel_share=found["kernel_share"],
            kernels=found["kernels"] if outcome is Outcome.CORRECT else "",
            **speed,
        )


_TIMES = (
    "reference_compile_ms",
    *("speedup", "speedup_low", "speedup_high", "runtime_ms", "reference_ms"),
    *("runtimes_ms", "reference_runtimes_ms"),
)


Started = tuple[Process, Channel]
"""A Runner and our end of its channel."""


class _Slot:
    """An Examiner and, for a task that is timed, the reference's own Runner; one candidate at a time."""

    def __init__(self, judge: Judge, number: int) -> None:
        self._judge, self.number = judge, number
        self.facts: dict[str, Any] = {}
        self.candidate_ran = False
        self._examiner: Process | None = None
        self._interpreted = False
        self._control: socket.socket | None = None
        self._reference: Process | None = None
        self._reference_channel: Channel | None = None
        self._large, self._judged_on, self._altered_by = False, "", ""
        self.ready: OrderedDict[Hashable, None] = OrderedDict()  # tasks; the last one asked for is the last
        self._ending: dict[str, Future[None]] = {}  # by the reference: the end of its last candidate's process
        self._next: Future[Started | None] | None = None
        self._served = 0

    def examine(self, maker: _Maker) -> Verdict:
        """Prepare, start the Runner, have it examined, kill it."""
        self.candidate_ran = False
        self.facts = {}
        judge = self._judge
        began = time.monotonic()
        self._start(maker)
        if (ending := self._ending.pop(maker.task.reference, None)) is not None:  # another task has other memory
            ending.result()
        if self._large and maker.task.reference != self._judged_on:
            self._close_reference()  # which holds the last task's memory
        self._judged_on = maker.task.reference
        with contextlib.ExitStack() as stack:
            request = maker.request()
            lock = judge.lock(stack)
            answer, fds = self._ask(request, lock, PREPARE_S + (2 * PATIENCE_S if lock else 0.0))
            for fd in fds:
                stack.callback(os.close, fd)
            if "refused" in answer:
                raise TaskRefused(answer["refused"])
            self.facts = answer
            self._remember(maker.key, answer["forget"])
            maker.device = answer["device"]
            plan, report, inputs, outputs, *of_reference = fds
            life_s = judge.config.life_s(maker.backend)
            if of_reference:
                is_new = self._start_reference(maker, answer["new"], plan, inputs, of_reference)
                if is_new or not answer["has_baseline"]:
                    self._time_reference(is_new, lock)
            self._large = answer["large"] > LARGE or answer["forget"]
            if answer["forget"]:
                stack.push(self._forget)
            source = self._buffer(stack, maker.candidate)
            process, ours = self._runner(maker, life_s)
            is_starting = self._next is not None and not self._next.done() and judge.is_alone
            maker.prepared_s = time.monotonic() - began
            stack.callback(self._retire, process)
            stack.callback(ours.close)
            self._hand_over(ours, [plan, source, report, inputs, outputs])
            self.candidate_ran = True
            handed = [ours.fd, process.pidfd, *lock]
            if self._reference is not None and self._reference_channel is not None and of_reference:
                handed += [self._reference_channel.fd, self._reference.pidfd]
            if is_starting:
                handed.append(self._until_started(stack))
            found, _ = self._ask(
                {
                    "do": "judge",
                    "backend": maker.backend,
                    "source": maker.candidate,
                    "life_s": life_s,
                    "locked": bool(judge.lock_path),
                    "starting": is_starting,
                },
                handed,
                life_s
                + GRACE_S
                + (PATIENCE_S if lock else 0.0)
                + (COMPILE_S if judge.config.compile_baseline else 0.0),
                process,
            )
            if "refused" in found:
                raise HarnessError(f"inputs that say nothing were drawn: {found['refused']}")
            ended = None
            if found["outcome"] == Outcome.CRASHED.value:
                with contextlib.suppress(TimeoutError):
                    ended = process.wait(1.0)
            process.kill()
            if found["outcome"] == Outcome.CORRECT.value and maker.interpreted and judge.config.compile_for:
                found |= self._compiled(maker, source, [plan, report, inputs, outputs], life_s)
            return maker.of_findings(found, ended)

    @property
    def last(self) -> Hashable:
        """The task that was judged on last, if it is ready."""
        return next(reversed(self.ready), None)

    def _remember(self, task: Hashable, is_forgotten: bool) -> None:
        """What the Examiner has ready now; but for what it gave up because of its size."""
        self.ready[task] = None
        self.ready.move_to_end(task)
        if is_forgotten:
            del self.ready[task]
        while len(self.ready) > READY:
            self.ready.popitem(last=False)

    def _forget(self, failure: type[BaseException] | None, *_: object) -> None:
        """Let others have a large task's memory; after a failure the whole slot is closed anyway."""
        if failure is None:
            self._close_reference()
            self._ask({"do": "forget"}, [], GRACE_S)

    def _compiled(self, maker: _Maker, source: int, fds: Sequence[int], life_s: float) -> dict[str, Any]:
        """What the compiler says to a candidate that the interpreter has run: nothing, or what ends it."""
        judge = self._judge
        plan, *others = fds
        with contextlib.ExitStack() as stack:
            process, ours = self._started(False, judge.limits(life_s, maker.backend))
            stack.enter_context(process)
            stack.callback(ours.close)
            self._hand_over(ours, [plan, source, *others])
            request = {"do": "compile", "backend": maker.backend, "source": maker.candidate, "life_s": life_s}
            answer, _ = self._ask(request, [ours.fd, process.pidfd], life_s + GRACE_S)
            process.kill_tree()
        return answer

    def _retire(self, process: Process) -> None:
        """Kill a candidate's tree. Its end is waited for before anybody else gets the memory that it could write to."""
        if self._judge.device == "cpu" or self._large:
            process.close()
        else:
            self._ending = {task: ending for task, ending in self._ending.items() if not ending.done()}
            self._ending[self._judged_on] = self._judge.retire(process)

    def _started(self, interpreted: bool, limits: Limits, connections: int = CONNECTIONS) -> Started:
        """A Runner that waits for its task, and our end of its channel."""
        judge = self._judge
        ours, theirs = Channel.pair()
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            process = judge.server(interpreted).start(
                RUNNER, fds=[theirs.fd], limits=limits, environment=judge.environment(interpreted, connections)
            )
            return process, ours

    def _hand_over(self, channel: Channel, fds: Sequence[int]) -> None:
        try:
            channel.send(int(Say.TASK))
            channel.send_descriptors(fds)
        except ChannelClosed:  # who is asked for an answer finds out, and says what it means
            pass

    def _ahead(self, interpreted: bool) -> Started | None:
        """A Runner that waits for its task. It is no candidate's yet, so its word is good."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._judge.contexts)
            process, channel = self._started(interpreted, self._judge.limits(None))
            try:
                channel.send(int(Say.PING))
                channel.send(int(Say.PING))
                channel.receive(timeout_s=START_S, pidfd=process.pidfd)  # it has its GPU's context
                stack.close()
                channel.receive(timeout_s=START_S, pidfd=process.pidfd)  # and all that it needs besides
                return process, channel
            except (ChannelClosed, ChannelTimeout, ProtocolBreach) as error:
                LOG.warning("a Runner that was started ahead is of no use: %s", error)
                _end(process, channel)
                return None

    def _runner(self, maker: _Maker, life_s: float) -> Started:
        """For a candidate. Where a GPU's context takes a while, the next one's is started already."""
        judge, interpreted = self._judge, maker.interpreted
        has_streams = judge.device != "cpu" and speaks_of_streams(maker.candidate)
        if has_streams or maker.backend in BUILDS or not judge.config.starts_ahead(judge.device):
            connections = OWN_CONNECTIONS if has_streams else CONNECTIONS
            return self._started(interpreted, judge.limits(life_s, maker.backend), connections)
        found, self._next = self._next, None
        ready = None if found is None else found.result()
        process, channel = ready or self._started(interpreted, judge.limits(None))
        if not process.running:
            _end(process, channel)
            process, channel = self._started(interpreted, judge.limits(None))
        self._next = judge.start_ahead(lambda: self._ahead(interpreted))
        return process, channel

    def _until_started(self, stack: contextlib.ExitStack) -> int:
        """A descriptor whose other end is closed once the next candidate's process is started."""
        assert self._next is not None
        ours, theirs = os.pipe()
        stack.callback(os.close, ours)
        self._next.add_done_callback(lambda _: os.close(theirs))
        return ours

    def _buffer(self, stack: contextlib.ExitStack, text: str) -> int:
        data = text.encode(errors="replace")
        buffer = stack.enter_context(SharedBuffer(len(data), "candidate"))
        buffer.view[:] = data
        return buffer.fd

    def _start(self, maker: _Maker) -> None:
        """The Examiner, if there is none, or none that can be used."""
        interpreted, reference = maker.interpreted, maker.task.reference
        if self._examiner is not None and (
            self._served >= RECYCLE
            or self._interpreted != interpreted
            or self._altered_by not in ("", reference)
            or not self._examiner.running
        ):
            self.close()
        self._altered_by = reference if any(word in reference for word in GLOBAL) else ""
        if self._examiner is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_BYTES)
            self._control = ours
            with theirs:
                self._examiner = self._judge.server(interpreted).start(
                    EXAMINER,
                    fds=[theirs.fileno()],
                    limits=replace(self._judge.limits(None), memory_bytes=None, data_bytes=None),
                    environment=self._judge.environment(interpreted),
                    sandbox=self._judge.examiners,
                )
            self._interpreted, self._served = interpreted, 0
        self._served += 1

    def _ask(
        self, request: dict[str, Any], fds: Sequence[int], patience_s: float, candidate: Process | None = None
    ) -> tuple[dict[str, Any], list[int]]:
        """The Examiner's answer; HarnessError if there is none in time, its waiting for the GPU left aside.

        It may ask for the candidate's end meanwhile.
        """
        assert self._control is not None
        assert self._examiner is not None
        message = json.dumps(request).encode()
        if len(message) > MESSAGE_BYTES:
            raise HarnessError(f"a request of {len(message)} bytes is too long: at most {MESSAGE_BYTES}")
        try:
            socket.send_fds(self._control, [message], list(fds))
        except OSError as error:
            raise ExaminerLost(f"the Examiner takes no request: {error}{self._last_words()}") from None
        until = time.monotonic() + patience_s
        answer, received = self._answer(until)
        while "waited" in answer or "end" in answer:
            until += answer.get("waited", 0.0)
            if "end" in answer and candidate is not None:
                candidate.kill_tree()
                until += AFTERWARDS_S
                self._control.sendall(json.dumps({"ended": True}).encode())
            answer, received = self._answer(until)
        if "failed" in answer:
            for fd in received:
                os.close(fd)
            what = answer["failed"].strip()
            LOG.error("the Examiner failed:\n%s", what)
            is_lost = answer["reference"] or "OutOfMemoryError" in what.splitlines()[-1]
            raise (ExaminerLost if is_lost else HarnessError)(f"the Examiner failed: {what.splitlines()[-1]}")
        return answer, received

    def _answer(self, until: float) -> tuple[dict[str, Any], list[int]]:
        """What the Examiner says next."""
        assert self._control is not None
        assert self._examiner is not None
        asked = time.monotonic()
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._examiner.pidfd, select.POLLIN)
        ready = dict(poller.poll(max(until - asked, 0.0) * 1000))
        if not ready:
            raise ExaminerLost(f"the Examiner gave no answer for {time.monotonic() - asked:.3g} s")
        if self._control.fileno() not in ready:
            raise ExaminerLost(f"the Examiner ended{self._last_words()}")
        data, received, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 16)
        if not data:
            raise ExaminerLost(f"the Examiner ended{self._last_words()}")
        answer: dict[str, Any] = json.loads(data)
        return answer, received

    def _last_words(self) -> str:
        assert self._examiner is not None
        try:
            ended = self._examiner.wait(2.0)
        except (TimeoutError, SandboxError) as error:
            return f" ({error})"
        words = self._examiner.stderr.text.strip().splitlines()
        return f" ({ended.reason})" + (f": {words[-1]}" if words else "")

    def _start_reference(self, maker: _Maker, is_new_task: bool, plan: int, inputs: int, fds: Sequence[int]) -> bool:
        """The reference's own Runner, with the reference handed over once a task. True if it was handed over now."""
        if self._reference is not None and not self._reference.running:
            self._close_reference()
        if self._reference is not None and not is_new_task:
            return False
        source = f"{maker.task.reference}\n\nModelNew = {maker.task.entry_point}\n"
        if self._reference is None:
            self._reference, self._reference_channel = self._started(maker.interpreted, self._judge.limits(None))
        assert self._reference_channel is not None
        with contextlib.ExitStack() as stack:
            self._hand_over(self._reference_channel, [plan, self._buffer(stack, source), fds[0], inputs, fds[1]])
        return True

    def _time_reference(self, is_new: bool, lock: Sequence[int]) -> None:
        """Before the candidate is handed over to its own process, of which nothing bad can come until then."""
        assert self._reference is not None
        assert self._reference_channel is not None
        whose = [self._reference_channel.fd, self._reference.pidfd, *lock]
        self._ask({"do": "baseline", "is_new": is_new}, whose, BASELINE_S + (PATIENCE_S if lock else 0.0))

    def _close_reference(self) -> None:
        reference, channel = self._reference, self._reference_channel
        self._reference = self._reference_channel = None
        if channel is not None:
            channel.close()
        if reference is not None:
            reference.close()

    def _drop_next(self) -> None:
        """The Runner that nobody needs."""
        found, self._next = self._next, None
        if found is not None and not found.cancel():
            with contextlib.suppress(SandboxError, OSError):
                if (ready := found.result()) is not None:
                    _end(*ready)

    def kill(self) -> None:
        """Take its Examiner away from whoever waits for it."""
        if (examiner := self._examiner) is not None:
            examiner.kill()

    def close(self) -> None:
        """End what belongs to the slot."""
        self.ready.clear()
        self._close_reference()
        self._drop_next()
        examiner, control = self._examiner, self._control
        self._examiner = self._control = None
        if control is not None:
            control.close()
        if examiner is not None:
            examiner.close()


def _end(process: Process, channel: Channel) -> None:
    channel.close()
    process.close()
