"""The Examiner: holds the reference, the secret seeds, the inputs and the expected outputs; compares; owns the clock.

It never runs a candidate's code. It is a process of its own, in the sandbox, since a reference can crash, too.
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
from kernel_coder.judge.wire.channel import Channel, SharedBuffer
from kernel_coder.judge.wire.messages import READY, REPORT_BYTES, Say, Status
from kernel_coder.judge.wire.module_calls import set_math_mode
from kernel_coder.judge.wire.shared_tensors import free_memory


def main(fds: list[int]) -> int:
    """Serve the supervisor until it closes its end: prepare a task, examine a candidate."""
    control = socket.socket(fileno=fds[0])

    def end_candidate() -> None:
        """Ask the supervisor to end the candidate's processes; the Examiner has no right to."""
        control.sendall(json.dumps({"end": "candidate"}).encode())
        control.recv(MESSAGE_BYTES)

    def tell(waited_s: float) -> None:
        control.sendall(json.dumps({"waited": waited_s}).encode())

    service = _Service(end_candidate, GpuTurns(on_wait=tell, finish_work=_finish_work))
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
"""Seconds that the reference's Runner may still answer after a candidate's time limit. So it is the candidate that
exceeds its limit first."""

BASELINE_S = 120.0
"""Time limit of the reference's Runner until the reference is timed without a candidate, in seconds."""

READY_BYTES = 128 << 20
"""Bytes that ready tasks other than the last one may take together."""


class _Service:
    def __init__(self, end_candidate: Callable[[], None], turns: GpuTurns) -> None:
        self.end_candidate, self.turns = end_candidate, turns
        self.task: PreparedTask | None = None
        self.key = ""
        self.ready: OrderedDict[str, PreparedTask] = OrderedDict()  # the one that was asked for last comes last
        self.plan: Any = None
        self.report: Any = None
        self.reference_report: Any = None

    def prepare(self, request: Mapping[str, Any], sent: list[int], lock: int | None = None) -> dict[str, Any]:
        """Make the task ready. Answers with descriptors: plan, report, inputs, outputs; and of the reference's Runner:
        report, outputs."""
        config = JudgeConfig.model_validate(request["config"])
        key = json.dumps([request["task"], request["config"], request["device"]])
        seeds = Seeds(config.seed)
        for old in (self.plan, self.report):
            if old is not None:
                old.close()
        self.plan = self.report = None
        is_new, is_ready = key != self.key, True
        with self.turns.using(lock):
            if is_new:
                if self.reference_report is not None:
                    self.reference_report.close()
                    self.reference_report = None
                self.task, self.key = None, ""
                is_ready = key in self.ready
                if not is_ready:
                    self._make_room(READY - 1, READY_BYTES)
                    self.ready[key] = self._made(request, config, Seeds(seeds.key, "task"))
                self.ready.move_to_end(key)
                self.task, self.key = self.ready[key], key
                set_math_mode(self.task.precision, config.threads)
            assert self.task is not None
            task = self.task
            task.refresh(seeds)
        free_memory(task.device)
        plan = json.dumps({**task.plan, "backend": request["backend"], "compile_for": config.compile_for}).encode()
        self.plan = SharedBuffer(len(plan), "plan")
        self.plan.view[:] = plan
        self.report = SharedBuffer(REPORT_BYTES, "report")
        memory = task.memory
        sent += [self.plan.fd, self.report.fd, memory.inputs.fd, memory.candidate_outputs.fd]
        if self.reference_report is None:
            self.reference_report = SharedBuffer(REPORT_BYTES, "report")
        if request["timed"]:
            sent += [self.reference_report.fd, memory.reference_outputs().fd]
        return {
            "new": is_new,
            "ready": is_ready,
            "has_baseline": task.known.has_fresh_baseline,
            "families": task.families,
            "skipped": task.skipped,
            "hidden_sizes": task.variants[-1].sizes,
            "device": _device_name(task.device),
            "large": memory.inputs.size + memory.candidate_outputs.size,
            "forget": task.is_large,
        }

    def _made(self, request: Mapping[str, Any], config: JudgeConfig, seeds: Seeds) -> PreparedTask:
        """Prepare the task. If memory is short beside other tasks, try once more with all of the GPU's."""
        device = torch.device(request["device"])
        with refusing("the task cannot be judged"):
            try:
                return PreparedTask(request["task"], config, device, seeds, self.turns)
            except TooLarge:
                if self.turns.lock is None:
                    raise
            self._make_room(0, 0)
            _collect()
            return PreparedTask(request["task"], config, device, seeds, self.turns, whole=True)

    def _make_room(self, count: int, size: int) -> None:
        """Forget tasks, the longest unused first, until at most `count` tasks and `size` bytes are left."""
        before = len(self.ready)
        while len(self.ready) > count or sum(task.memory.bytes_held for task in self.ready.values()) > size:
            self.ready.popitem(last=False)[1].close()
        if len(self.ready) < before:
            _collect()

    def forget(self) -> dict[str, Any]:
        """Free the last task, since others wait for its memory."""
        if self.task is not None:
            self.task = None
            self.ready.pop(self.key).close()
            self.key = ""
            _collect()
        return {}

    def baseline(self, fds: list[int], is_new: bool) -> dict[str, Any]:
        """Time the reference before a candidate is there that could disturb it. The descriptors: its Runner's channel
        and pidfd, and the lock. `is_new`: whether the reference has just been handed to its Runner."""
        task = self.task
        assert task is not None
        channel = Channel(os.dup(fds[0]))
        outputs, report = task.memory.reference_outputs(), self.reference_report.view
        try:
            link = ReferenceLink(channel, fds[1], outputs, report, BASELINE_S, self.turns)
            if is_new and link.answer(Say.BUILT).status != Status.OK:
                raise RuntimeError(f"the reference could not be built in its own Runner: {link.text()}")
            with self.turns.using(fds[2] if len(fds) > 2 else None):
                if not task.known.has_fresh_baseline:
                    with task.draws.aside():
                        timer = Timer(Checker(task, link, "", self.turns), link)
                        task.known.baseline = timer.measure_baseline()
        finally:
            channel.close()
        return {}

    def judge(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Examine the candidate behind the descriptors: its channel and pidfd, the lock, the reference's channel and
        pidfd, and a pipe that is closed once the next candidate's process has made its GPU context."""
        task = self.task
        assert task is not None
        life_s = request["life_s"]
        outputs, report = task.memory.candidate_outputs, self.report.view
        link = Link(Channel(os.dup(fds[0])), fds[1], outputs, report, life_s, self.turns)
        reference = None
        starting = fds.pop() if request["starting"] else None
        lock = fds.pop(2) if request["locked"] else None
        if len(fds) > 2:
            outputs, report = task.memory.reference_outputs(), self.reference_report.view
            channel = Channel(os.dup(fds[2]))
            reference = ReferenceLink(channel, fds[3], outputs, report, life_s + LATER_S, self.turns)
        backend, source = request["backend"], request["source"]
        examination = Examination(task, link, reference, backend, source, self.end_candidate, self.turns, starting)
        ended: dict[str, Any] = {"outcome": Outcome.CORRECT.value}
        try:
            with self.turns.using(lock):
                examination.run()
        except Judged as judged:
            ended = {"outcome": judged.outcome.value, "reason": judged.reason, "feedback": judged.feedback}
            examination.compiled = judged.compiled and examination.compiled
        finally:
            link.channel.close()
            if reference is not None:
                reference.channel.close()
            for fd in (lock, starting):
                if fd is not None:
                    os.close(fd)
        return {**ended, **examination.findings(), "seeds": [task.draws.seeds.key], "families": task.families}

    def compile(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Have a correct candidate's kernels compiled by another Runner, in which kernels are not interpreted."""
        task = self.task
        assert task is not None
        outputs, life_s = task.memory.candidate_outputs, request["life_s"]
        link = Link(Channel(os.dup(fds[0])), fds[1], outputs, self.report.view, life_s, self.turns)
        link.forget_text()
        backend, source = request["backend"], request["source"]
        examination = Examination(task, link, None, backend, source, self.end_candidate, self.turns)
        try:
            examination.compile_for_target()
        except Judged as judged:
            told = {"reason": judged.reason, "feedback": judged.feedback}
            return {"outcome": judged.outcome.value, **told, "compiled": False}
        finally:
            link.channel.close()
        return {"kernels": examination.kernels}


def _collect() -> None:
    """Give the memory of forgotten tasks back."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _finish_work() -> None:
    """Wait until the GPU has done what this process asked of it, if it uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
