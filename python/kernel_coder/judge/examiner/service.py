"""The Examiner process. It holds the reference, the secret seeds, the inputs and the expected outputs; it owns the
clock.

It never runs a candidate's code. It runs in the sandbox too, because a reference can crash.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.examination import Examination
from kernel_coder.judge.examiner.judged import Judged
from kernel_coder.judge.examiner.link import Link, ReferenceFailed, ReferenceLink
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import Seeds
from kernel_coder.judge.examiner.refusals import Refused, TooLarge, refusing
from kernel_coder.judge.examiner.timing.timer import Timer
from kernel_coder.judge.gpu.turns import GpuTurns
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire import requests
from kernel_coder.judge.wire.channel import Channel, SharedBuffer
from kernel_coder.judge.wire.limits import BASELINE_S, READY_TASKS, REFERENCE_GRACE_S
from kernel_coder.judge.wire.messages import REPORT_BYTES, Say, Status
from kernel_coder.judge.wire.module_calls import set_math_mode
from kernel_coder.judge.wire.requests import Connection
from kernel_coder.judge.wire.shared_tensors import free_memory

MAX_SPLIT_MB = 256
"""Blocks of GPU memory above this size, in MiB, are never divided. Otherwise a small tensor in a large block that was
freed keeps the rest of the block from other processes."""


def main(fds: list[int]) -> int:
    """Answer the Supervisor's requests until it closes its end of the connection. `fds` holds the Examiner's end."""
    supervisor = Connection(socket.socket(fileno=fds[0]))
    torch._C._accelerator_setAllocatorSettings(f"max_split_size_mb:{MAX_SPLIT_MB}")

    def end_candidate() -> None:
        """Ask the Supervisor to kill the candidate: the Examiner is not permitted to."""
        supervisor.send(requests.EndCandidate())
        supervisor.receive()

    def tell(waited_s: float) -> None:
        supervisor.send(requests.Waited(seconds=waited_s))

    service = _Service(end_candidate, GpuTurns(on_wait=tell, finish_work=_finish_work))
    while (request := supervisor.receive()) is not None:
        supervisor.send(_answer(service, request))
    return 0


def _answer(service: _Service, request: requests.Message) -> requests.Message:
    """Carry out one request. If that raises an exception, the answer reports it."""
    try:
        match request:
            case requests.PrepareTask():
                return service.prepare(request)
            case requests.TimeReference():
                return service.baseline(request)
            case requests.JudgeCandidate():
                return service.judge(request)
            case requests.CompileCandidate():
                return service.compile(request)
            case requests.ForgetTask():
                return service.forget()
        raise TypeError(f"{type(request).__name__} is no request")
    except Refused as refused:
        return requests.Refusal(reason=str(refused))
    except BaseException as failed:
        is_of_reference = isinstance(failed, ReferenceFailed)
        return requests.Failure(traceback=traceback.format_exc()[-4000:], is_of_reference=is_of_reference)
    finally:
        request.close_descriptors()


READY_BYTES = 128 << 20
"""Upper limit of the memory of all tasks that stay prepared besides the one in use, in bytes."""


class _Service:
    def __init__(self, end_candidate: Callable[[], None], turns: GpuTurns) -> None:
        self.end_candidate, self.turns = end_candidate, turns
        self.task: PreparedTask | None = None
        self.key = ""
        self.ready: OrderedDict[str, PreparedTask] = OrderedDict()  # the task that was requested last is the last entry
        self.plan: Any = None
        self.report: Any = None
        self.reference_report: Any = None

    def prepare(self, request: requests.PrepareTask) -> requests.Prepared:
        """Prepare the task, unless it is still prepared, and draw new parameters and seeds for its next candidate."""
        config = JudgeConfig.model_validate(request.config)
        key = json.dumps([request.task, request.config, request.device])
        seeds = Seeds(config.seed)
        for old in (self.plan, self.report):
            if old is not None:
                old.close()
        self.plan = self.report = None
        is_new, is_ready, waited_s = key != self.key, True, self.turns.waited_s
        with self.turns.using(request.lock):
            if is_new:
                if self.reference_report is not None:
                    self.reference_report.close()
                    self.reference_report = None
                self.task, self.key = None, ""
                is_ready = key in self.ready
                if not is_ready:
                    self._make_room(READY_TASKS - 1, READY_BYTES)
                    self.ready[key] = self._made(request, config, Seeds(seeds.key, "task"))
                self.ready.move_to_end(key)
                self.task, self.key = self.ready[key], key
                set_math_mode(self.task.precision, config.threads)
            assert self.task is not None
            task = self.task
            if is_ready and task.shares and request.lock is not None:
                self.turns.reserve(task.shares)
            task.refresh(seeds)
        free_memory(task.device)
        of_candidate = {"backend": request.backend, "compile_for": config.compile_for, "kernels": config.kernels}
        plan = json.dumps({**task.plan, **of_candidate}).encode()
        self.plan = SharedBuffer(len(plan), "plan")
        self.plan.view[:] = plan
        self.report = SharedBuffer(REPORT_BYTES, "report")
        if self.reference_report is None:
            self.reference_report = SharedBuffer(REPORT_BYTES, "report")
        memory = task.memory
        return requests.Prepared(
            is_new=is_new,
            was_ready=is_ready,
            waited_s=self.turns.waited_s - waited_s,
            has_baseline=task.known.has_fresh_baseline,
            families=task.families,
            skipped=task.skipped,
            hidden_sizes=task.variants[-1].sizes,
            device=_device_name(task.device),
            shared_bytes=memory.inputs.size + memory.candidate_outputs.size,
            is_large=task.is_large,
            plan=self.plan.fd,
            report=self.report.fd,
            inputs=memory.inputs.fd,
            outputs=memory.candidate_outputs.fd,
            reference_report=self.reference_report.fd if request.is_timed else None,
            reference_outputs=memory.reference_outputs().fd if request.is_timed else None,
        )

    def _made(self, request: requests.PrepareTask, config: JudgeConfig, seeds: Seeds) -> PreparedTask:
        """Prepare the task. If GPU memory is short beside other tasks, try once more with all of the GPU reserved."""
        device = torch.device(request.device)
        with refusing("the task cannot be judged"):
            try:
                return PreparedTask(request.task, config, device, seeds, self.turns)
            except TooLarge:
                if self.turns.lock is None:
                    raise
            self._make_room(0, 0)
            _collect()
            return PreparedTask(request.task, config, device, seeds, self.turns, whole=True)

    def _make_room(self, count: int, size: int) -> None:
        """Close prepared tasks, the longest unused first, until at most `count` tasks and `size` bytes are left."""
        before = len(self.ready)
        while len(self.ready) > count or sum(task.memory.bytes_held for task in self.ready.values()) > size:
            self.ready.popitem(last=False)[1].close()
        if len(self.ready) < before:
            _collect()

    def forget(self) -> requests.Done:
        """Free the task in use, because other tasks wait for its memory."""
        if self.task is not None:
            self.task = None
            self.ready.pop(self.key).close()
            self.key = ""
            _collect()
        return requests.Done()

    def baseline(self, request: requests.TimeReference) -> requests.Done:
        """Time the reference before any candidate runs that could slow it down."""
        task = self.task
        assert task is not None
        channel = Channel(os.dup(request.reference_channel))
        outputs, report = task.memory.reference_outputs(), self.reference_report.view
        try:
            link = ReferenceLink(channel, request.reference_process, outputs, report, BASELINE_S)
            if request.is_new and link.answer(Say.BUILT).status != Status.OK:
                raise RuntimeError(f"the reference could not be built in its own Runner: {link.text()}")
            with self.turns.using(request.lock):
                if not task.known.has_fresh_baseline:
                    with task.draws.aside():
                        timer = Timer(Checker(task, link, "", self.turns), link)
                        task.known.baseline = timer.measure_baseline()
        finally:
            channel.close()
        return requests.Done()

    def judge(self, request: requests.JudgeCandidate) -> requests.Found:
        """Examine the candidate; if it is timed, together with the reference's own Runner."""
        task = self.task
        assert task is not None
        time_limit_s, outputs = request.time_limit_s, task.memory.candidate_outputs
        link = Link(Channel(os.dup(request.channel)), request.process, outputs, self.report.view, time_limit_s)
        reference = None
        if request.reference_channel is not None and request.reference_process is not None:
            outputs, report = task.memory.reference_outputs(), self.reference_report.view
            channel, limit_s = Channel(os.dup(request.reference_channel)), time_limit_s + REFERENCE_GRACE_S
            reference = ReferenceLink(channel, request.reference_process, outputs, report, limit_s)
        examination = Examination(
            task,
            link,
            reference,
            request.backend,
            request.source,
            self.end_candidate,
            self.turns,
            request.next_runner,
        )
        ended: dict[str, Any] = {"outcome": Outcome.CORRECT.value}
        try:
            with self.turns.using(request.lock):
                examination.run()
        except Judged as judged:
            ended = {"outcome": judged.outcome.value, "reason": judged.reason, "feedback": judged.feedback}
            examination.compiled = judged.compiled and examination.compiled
        finally:
            link.channel.close()
            if reference is not None:
                reference.channel.close()
        return requests.Found(**ended, **examination.findings(), seeds=[task.draws.seeds.key])

    def compile(self, request: requests.CompileCandidate) -> requests.Compiled:
        """Compile the kernels of a candidate that was correct in Triton's interpreter, in a Runner without it."""
        task = self.task
        assert task is not None
        outputs, time_limit_s = task.memory.candidate_outputs, request.time_limit_s
        link = Link(Channel(os.dup(request.channel)), request.process, outputs, self.report.view, time_limit_s)
        link.forget_text()
        examination = Examination(task, link, None, request.backend, request.source, self.end_candidate, self.turns)
        try:
            examination.compile_for_target()
        except Judged as judged:
            return requests.Compiled(outcome=judged.outcome.value, reason=judged.reason, feedback=judged.feedback)
        finally:
            link.channel.close()
        return requests.Compiled(kernels=examination.kernels)


def _collect() -> None:
    """Return the memory of closed tasks to the system."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _finish_work() -> None:
    """Wait until the GPU has finished this process's work, if the process uses a GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
