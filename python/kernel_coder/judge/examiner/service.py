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
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.examination import Ended, Link, ReferenceFailed, ReferenceLink, Session
from kernel_coder.judge.examiner.prepared_task import Problem, Refused, Seeds, TooLarge, refusing
from kernel_coder.judge.gpu.turns import Turn
from kernel_coder.judge.verdict import Outcome
from kernel_coder.judge.wire.channel import Channel
from kernel_coder.judge.wire.messages import (
    READY,
    REPORT_BYTES,
    Say,
    Status,
)
from kernel_coder.judge.wire.module_calls import set_math_mode
from kernel_coder.judge.wire.shared_tensors import free_memory


def main(fds: list[int]) -> int:
    """Serve the supervisor until it closes its end: prepare a task, examine a candidate."""
    control = socket.socket(fileno=fds[0])

    def end_candidate() -> None:
        """By the supervisor, who may."""
        control.sendall(json.dumps({"end": "candidate"}).encode())
        control.recv(MESSAGE_BYTES)

    service = _Service(end_candidate)
    Turn.tell = lambda waited_s: control.sendall(json.dumps({"waited": waited_s}).encode())
    Turn.settle = _settle
    while True:
        message, received, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 16)
        if not message:
            return 0
        request = json.loads(message)
        sent: list[int] = []
        try:
            if request["do"] == "prepare":
                answer = service.prepare(request, sent, received[0] if received else None)
            elif request["do"] == "forget":
                answer = service.forget()
            elif request["do"] == "baseline":
                answer = service.baseline(received, request["is_new"])
            elif request["do"] == "compile":
                answer = service.compile(request, received)
            else:
                answer = service.judge(request, received)
        except Refused as refused:
            answer = {"refused": str(refused)}
        except BaseException as failed:
            answer = {"failed": traceback.format_exc()[-4000:], "reference": isinstance(failed, ReferenceFailed)}
        finally:
            for fd in received:
                os.close(fd)
        socket.send_fds(control, [json.dumps(answer).encode()], sent)


MESSAGE_BYTES = 1 << 20

LATER_S = 10.0
"""The reference's Runner may answer for so long after a candidate's life, whose end then is the candidate's fault."""

BASELINE_S = 120.0
"""What the reference may take until it is timed, without a candidate."""

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

    def prepare(self, request: Mapping[str, Any], sent: list[int], lock: int | None = None) -> dict[str, Any]:
        """Make the task ready. Answers with descriptors: plan, report, inputs, outputs; and of the reference's Runner:
        report, outputs."""
        from kernel_coder.judge.wire.channel import SharedBuffer

        config = JudgeConfig.model_validate(request["config"])
        key = json.dumps([request["task"], request["config"], request["device"]])
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
                self._make_room(READY - 1, READY_BYTES)
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
        plan = json.dumps({**problem.plan, "backend": request["backend"], "compile_for": config.compile_for}).encode()
        self.plan = SharedBuffer(len(plan), "plan")
        self.plan.view[:] = plan
        self.report = SharedBuffer(REPORT_BYTES, "report")
        sent += [self.plan.fd, self.report.fd, problem.inputs.fd, problem.outputs_of_candidate.fd]
        if self.reference_report is None:
            self.reference_report = SharedBuffer(REPORT_BYTES, "report")
        if request["timed"]:
            sent += [self.reference_report.fd, problem.reference_outputs().fd]
        return {
            "new": is_new,
            "ready": is_ready,
            "has_baseline": problem.has_baseline,
            "families": problem.families,
            "skipped": problem.skipped,
            "hidden_sizes": problem.variants[-1].sizes,
            "device": _device_name(problem.device),
            "large": problem.inputs.size + problem.outputs_of_candidate.size,
            "forget": problem.is_large,
        }

    def _made(self, request: Mapping[str, Any], config: JudgeConfig, seeds: Seeds, lock: int | None) -> Problem:
        """If memory is short beside others, once more when all of it is free."""
        device = torch.device(request["device"])
        with refusing("the task cannot be judged"):
            try:
                return Problem(request["task"], config, device, seeds, lock)
            except TooLarge:
                if lock is None:
                    raise
            self._make_room(0, 0)
            _collect()
            return Problem(request["task"], config, device, seeds, lock, whole=True)

    def _make_room(self, count: int, size: int) -> None:
        """Forget the tasks that were not asked for for the longest time, until so many are left, and so many bytes."""
        before = len(self.ready)
        while len(self.ready) > count or sum(problem.bytes_held for problem in self.ready.values()) > size:
            self.ready.popitem(last=False)[1].close()
        if len(self.ready) < before:
            _collect()

    def forget(self) -> dict[str, Any]:
        """The last task, whose memory others wait for."""
        if self.problem is not None:
            self.problem = None
            self.ready.pop(self.key).close()
            self.key = ""
            _collect()
        return {}

    def baseline(self, fds: list[int], is_new: bool) -> dict[str, Any]:
        """Time the reference before a candidate is there that could disturb it. The descriptors: its Runner's channel
        and pidfd, and the lock. `is_new`: it has just been handed over to its Runner."""
        from kernel_coder.judge.examiner.timing.timer import Timer

        problem = self.problem
        assert problem is not None
        channel = Channel(os.dup(fds[0]))
        try:
            link = ReferenceLink(channel, fds[1], problem.reference_outputs(), self.reference_report.view, BASELINE_S)
            if is_new and link.answer(Say.BUILT).status != Status.OK:
                raise RuntimeError(f"the reference could not be built in its own Runner: {link.text()}")
            session = Session(problem, link, link, "torch", "", end_candidate=lambda: None)
            session.lock = problem.lock = fds[2] if len(fds) > 2 else None
            if not problem.has_baseline:
                with problem.aside():
                    problem.baseline = Timer(session, link).measure_baseline()
        finally:
            channel.close()
            problem.lock = None
        return {}

    def judge(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Examine the candidate behind the descriptors: its channel and pidfd, the lock, the reference's two, and what
        is closed when another process is started."""
        problem = self.problem
        assert problem is not None
        life_s = request["life_s"]
        link = Link(Channel(os.dup(fds[0])), fds[1], problem.outputs_of_candidate, self.report.view, life_s)
        reference = None
        starting = fds.pop() if request["starting"] else None
        lock = fds.pop(2) if request["locked"] else None
        if len(fds) > 2:
            outputs = problem.reference_outputs()
            channel = Channel(os.dup(fds[2]))
            reference = ReferenceLink(channel, fds[3], outputs, self.reference_report.view, life_s + LATER_S)
        session = Session(problem, link, reference, request["backend"], request["source"], self.end_candidate)
        session.lock = problem.lock = lock
        session.starting = starting
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
            for fd in (lock, starting):
                if fd is not None:
                    os.close(fd)
        return {**ended, **session.findings(), "seeds": [problem.seeds.key], "families": problem.families}

    def compile(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Have a correct candidate's kernels compiled by another Runner, where kernels are not interpreted."""
        problem = self.problem
        assert problem is not None
        outputs, life_s = problem.outputs_of_candidate, request["life_s"]
        link = Link(Channel(os.dup(fds[0])), fds[1], outputs, self.report.view, life_s)
        link.forget_text()
        try:
            session = Session(problem, link, None, request["backend"], request["source"], self.end_candidate)
            session.compile_for_target()
        except Ended as end:
            return {"outcome": end.outcome.value, "reason": end.reason, "feedback": end.feedback, "compiled": False}
        finally:
            link.channel.close()
        return {"kernels": session.kernels}


def _collect() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _settle() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
