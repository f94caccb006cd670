"""The Examiner: holds the reference, the secret seeds, the inputs and the expected outputs; compares; owns the clock.

It never sees a candidate's code. It runs as a process of its own, in the sandbox, since a reference can die too.
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
from kernel_coder.judge.examiner.examination import Ended, Link, ReferenceFailed, ReferenceLink, Session
from kernel_coder.judge.examiner.prepared_task import Problem, Refused, Seeds, TooLarge, refusing
from kernel_coder.judge.gpu.turns import Turn
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire import requests
from kernel_coder.judge.wire.channel import Channel
from kernel_coder.judge.wire.limits import BASELINE_S, READY_TASKS, REFERENCE_GRACE_S
from kernel_coder.judge.wire.messages import REPORT_BYTES, Say, Status
from kernel_coder.judge.wire.module_calls import set_math_mode
from kernel_coder.judge.wire.requests import Connection
from kernel_coder.judge.wire.shared_tensors import free_memory


def main(fds: list[int]) -> int:
    """Answer the Supervisor's requests until it closes its end of the connection. `fds` holds the Examiner's end."""
    supervisor = Connection(socket.socket(fileno=fds[0]))

    def end_candidate() -> None:
        """Ask the Supervisor to kill the candidate: the Examiner may not."""
        supervisor.send(requests.EndCandidate())
        supervisor.receive()

    service = _Service(end_candidate)
    Turn.tell = lambda waited_s: supervisor.send(requests.Waited(seconds=waited_s))
    Turn.settle = _settle
    while (request := supervisor.receive()) is not None:
        supervisor.send(_answer(service, request))
    return 0


def _answer(service: _Service, request: requests.Message) -> requests.Message:
    """Carry out one request; an exception becomes an answer too."""
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
"""Memory that tasks may take which stay ready and are not the last one."""


class _Service:
    def __init__(self, end_candidate: Callable[[], None]) -> None:
        self.end_candidate = end_candidate
        self.problem: Problem | None = None
        self.key = ""
        self.ready: OrderedDict[str, Problem] = OrderedDict()  # the last one asked for is the last
        self.plan: Any = None
        self.report: Any = None
        self.reference_report: Any = None

    def prepare(self, request: requests.PrepareTask) -> requests.Prepared:
        """Prepare the task, unless it is kept ready, and draw fresh inputs for its next candidate."""
        from kernel_coder.judge.wire.channel import SharedBuffer

        config, lock = JudgeConfig.model_validate(request.config), request.lock
        key = json.dumps([request.task, request.config, request.device])
        seeds = Seeds(config.seed)
        for old in (self.plan, self.report):
            if old is not None:
                old.close()
        self.plan = self.report = None
        is_new, is_ready = key != self.key, True
        if is_new:
            if self.reference_report is not None:
                self.reference_report.close()
                self.reference_report = None
            self.problem, self.key = None, ""
            is_ready = key in self.ready
            if not is_ready:
                self._make_room(READY_TASKS - 1, READY_BYTES)
                self.ready[key] = self._made(request, config, Seeds(seeds.key, "task"), lock)
            self.ready.move_to_end(key)
            self.problem, self.key = self.ready[key], key
            set_math_mode(self.problem.precision, config.threads)
        assert self.problem is not None
        problem = self.problem
        problem.lock = lock
        problem.refresh(seeds)
        problem.lock = None
        free_memory(problem.device)
        plan = json.dumps({**problem.plan, "backend": request.backend, "compile_for": config.compile_for}).encode()
        self.plan = SharedBuffer(len(plan), "plan")
        self.plan.view[:] = plan
        self.report = SharedBuffer(REPORT_BYTES, "report")
        if self.reference_report is None:
            self.reference_report = SharedBuffer(REPORT_BYTES, "report")
        return requests.Prepared(
            is_new=is_new,
            was_ready=is_ready,
            has_baseline=problem.has_baseline,
            families=problem.families,
            skipped=problem.skipped,
            hidden_sizes=problem.variants[-1].sizes,
            device=_device_name(problem.device),
            shared_bytes=problem.inputs.size + problem.outputs_of_candidate.size,
            is_large=problem.is_large,
            plan=self.plan.fd,
            report=self.report.fd,
            inputs=problem.inputs.fd,
            outputs=problem.outputs_of_candidate.fd,
            reference_report=self.reference_report.fd if request.is_timed else None,
            reference_outputs=problem.reference_outputs().fd if request.is_timed else None,
        )

    def _made(self, request: requests.PrepareTask, config: JudgeConfig, seeds: Seeds, lock: int | None) -> Problem:
        """If memory is short beside others, once more when all of it is free."""
        device = torch.device(request.device)
        with refusing("the task cannot be judged"):
            try:
                return Problem(request.task, config, device, seeds, lock)
            except TooLarge:
                if lock is None:
                    raise
            self._make_room(0, 0)
            _collect()
            return Problem(request.task, config, device, seeds, lock, whole=True)

    def _make_room(self, count: int, size: int) -> None:
        """Forget the tasks that were not asked for for the longest time, until so many are left, and so many bytes."""
        before = len(self.ready)
        while len(self.ready) > count or sum(problem.bytes_held for problem in self.ready.values()) > size:
            self.ready.popitem(last=False)[1].close()
        if len(self.ready) < before:
            _collect()

    def forget(self) -> requests.Done:
        """The last task, whose memory others wait for."""
        if self.problem is not None:
            self.problem = None
            self.ready.pop(self.key).close()
            self.key = ""
            _collect()
        return requests.Done()

    def baseline(self, request: requests.TimeReference) -> requests.Done:
        """Time the reference before there is a candidate that could disturb it."""
        from kernel_coder.judge.examiner.timing.timer import Timer

        problem = self.problem
        assert problem is not None
        channel = Channel(os.dup(request.reference_channel))
        try:
            outputs = problem.reference_outputs()
            link = ReferenceLink(channel, request.reference_process, outputs, self.reference_report.view, BASELINE_S)
            if request.is_new and link.answer(Say.BUILT).status != Status.OK:
                raise RuntimeError(f"the reference could not be built in its own Runner: {link.text()}")
            session = Session(problem, link, link, "torch", "", end_candidate=lambda: None)
            session.lock = problem.lock = request.lock
            if not problem.has_baseline:
                with problem.aside():
                    problem.baseline = Timer(session, link).measure_baseline()
        finally:
            channel.close()
            problem.lock = None
        return requests.Done()

    def judge(self, request: requests.JudgeCandidate) -> requests.Found:
        """Examine the candidate, beside the reference's Runner if it is timed."""
        problem = self.problem
        assert problem is not None
        outputs, life_s = problem.outputs_of_candidate, request.life_s
        link = Link(Channel(os.dup(request.channel)), request.process, outputs, self.report.view, life_s)
        reference = None
        if request.reference_channel is not None and request.reference_process is not None:
            outputs = problem.reference_outputs()
            channel = Channel(os.dup(request.reference_channel))
            limit_s = life_s + REFERENCE_GRACE_S
            reference = ReferenceLink(channel, request.reference_process, outputs, self.reference_report.view, limit_s)
        session = Session(problem, link, reference, request.backend, request.source, self.end_candidate)
        session.lock = problem.lock = request.lock
        session.starting = request.next_runner
        ended: dict[str, Any] = {"outcome": Outcome.CORRECT.value}
        try:
            session.run()
        except Ended as end:
            ended = {"outcome": end.outcome.value, "reason": end.reason, "feedback": end.feedback}
            session.compiled = end.compiled and session.compiled
        finally:
            link.channel.close()
            if reference is not None:
                reference.channel.close()
            problem.lock = None
        return requests.Found(**ended, **session.findings(), seeds=[problem.seeds.key])

    def compile(self, request: requests.CompileCandidate) -> requests.Compiled:
        """Have a correct candidate's kernels compiled by another Runner, where kernels are not interpreted."""
        problem = self.problem
        assert problem is not None
        outputs, life_s = problem.outputs_of_candidate, request.life_s
        link = Link(Channel(os.dup(request.channel)), request.process, outputs, self.report.view, life_s)
        link.forget_text()
        try:
            session = Session(problem, link, None, request.backend, request.source, self.end_candidate)
            session.compile_for_target()
        except Ended as end:
            return requests.Compiled(outcome=end.outcome.value, reason=end.reason, feedback=end.feedback)
        finally:
            link.channel.close()
        return requests.Compiled(kernels=session.kernels)


def _collect() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _settle() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
