"""One worker of a judge, with an Examiner, the reference's Runner, and the current candidate's Runner."""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import replace

from kernel_coder.judge.config import BUILDS
from kernel_coder.judge.examiner.source_checks import speaks_of_streams
from kernel_coder.judge.gpu.turns import MAX_TURN_WAITS_S, PATIENCE_S
from kernel_coder.judge.runner.side_streams import CONNECTIONS, OWN_CONNECTIONS
from kernel_coder.judge.sandbox.errors import SandboxError
from kernel_coder.judge.sandbox.process import Process
from kernel_coder.judge.supervisor.errors import HarnessError, TaskRefused
from kernel_coder.judge.supervisor.evaluation import Evaluation
from kernel_coder.judge.supervisor.examiner import Examiner
from kernel_coder.judge.supervisor.processes import Processes, Runner
from kernel_coder.judge.verdict import Outcome, Verdict
from kernel_coder.judge.wire import limits
from kernel_coder.judge.wire.channel import SharedBuffer
from kernel_coder.judge.wire.requests import (
    CompileCandidate,
    Compiled,
    Done,
    ForgetTask,
    Found,
    JudgeCandidate,
    Prepared,
    TimeReference,
)

LARGE_BYTES = 1 << 30
"""Limit of a task's shared memory, in bytes, above which the judge waits at once until a candidate's process has ended:
that memory is not free before."""

MAX_TASKS = 200
"""Number of candidates after which an Examiner is replaced. This limits what references can leave behind in it."""

EXIT_S = 1.0
"""Time limit, in seconds, to find out how a candidate's process ended that stopped answering."""

PROCESS_WIDE = ("torch.backends", "torch.set_", "default_dtype", "default_device")
"""Text in a reference that may change settings of its whole process. An Examiner that has run such a reference is not
used for another one."""


class Slot:
    """Judges one candidate at a time.

    Args:
        processes: starts and ends processes.
        is_only_worker: returns whether no other candidate is being judged.

    Attributes:
        prepared: the Examiner's answer about the task of the last candidate; None if there was none.
        candidate_ran: the last candidate's source was sent to a Runner.
        ready: keys of the tasks that the Examiner has prepared, the last one used at the end.
    """

    def __init__(self, processes: Processes, is_only_worker: Callable[[], bool]) -> None:
        self._processes, self._config = processes, processes.config
        self._is_only_worker = is_only_worker
        self.prepared: Prepared | None = None
        self.candidate_ran = False
        self.ready: OrderedDict[Hashable, None] = OrderedDict()
        self._examiner: Examiner | None = None
        self._reference: Runner | None = None
        self._next: Future[Runner | None] | None = None  # the Runner that is started ahead for the next candidate
        self._is_large = False
        self._reference_source = ""  # source of the last candidate's reference
        self._settings_of = ""  # source of the reference that may have changed settings of the Examiner's process
        self._retired: dict[str, Future[None]] = {}  # by the reference's source: end of its last candidate's process

    @property
    def last(self) -> Hashable:
        """The key of the task that was used last, if it is still prepared; otherwise None."""
        return next(reversed(self.ready), None)

    def examine(self, evaluation: Evaluation) -> Verdict:
        """Prepare the task, start a Runner for the candidate, have the Examiner examine it, and kill it.

        Raises:
            TaskRefused: no candidate can be judged on this task.
            HarnessError, SandboxError, OSError: the judge failed.
        """
        self.candidate_ran, self.prepared = False, None
        began = time.monotonic()
        reference = evaluation.task.reference
        examiner = self._started_examiner(evaluation)
        if (ending := self._retired.pop(reference, None)) is not None:  # it may still write to this task's memory
            ending.result()
        if self._is_large and reference != self._reference_source:
            self._close_reference()  # it holds the last task's memory
        self._reference_source = reference
        with contextlib.ExitStack() as stack:
            lock = self._processes.open_lock(stack)
            prepare_s = limits.PREPARE_S + (0.0 if lock is None else 2 * PATIENCE_S)
            prepared = examiner.ask(evaluation.request(lock), Prepared, prepare_s)
            prepared_at = time.monotonic()
            stack.callback(prepared.close_descriptors)
            self.prepared = prepared
            self._remember(evaluation.task_key, prepared)
            evaluation.device = prepared.device
            reference_runner = self._timed_reference(examiner, evaluation, prepared, lock)
            timed_at = time.monotonic()
            self._is_large = prepared.shared_bytes > LARGE_BYTES or prepared.is_large
            if prepared.is_large:
                stack.push(self._forget_task)
            source = stack.enter_context(_buffer(evaluation.candidate))
            time_limit_s = self._config.time_limit_s(evaluation.backend)
            runner = self._candidate_runner(evaluation, time_limit_s)
            next_runner = self._next
            if next_runner is not None and (next_runner.done() or not self._is_only_worker()):
                next_runner = None
            evaluation.stage_s = {
                "prepare": prepared_at - began,
                "prepare_wait": prepared.waited_s,
                "baseline": timed_at - prepared_at,
                "start": time.monotonic() - timed_at,
            }
            stack.callback(self._retire, runner.process)
            stack.callback(runner.channel.close)
            _hand_over(runner, prepared, source)
            self.candidate_ran = True
            request = JudgeCandidate(
                backend=evaluation.backend,
                source=evaluation.candidate,
                time_limit_s=time_limit_s,
                channel=runner.channel.fd,
                process=runner.process.pidfd,
                lock=lock,
                reference_channel=None if reference_runner is None else reference_runner.channel.fd,
                reference_process=None if reference_runner is None else reference_runner.process.pidfd,
                next_runner=None if next_runner is None else _pipe_until(next_runner, stack),
            )
            timeout_s = time_limit_s + limits.EXAMINER_S + limits.GRACE_S + (0.0 if lock is None else MAX_TURN_WAITS_S)
            timeout_s += limits.COMPILE_ANSWER_S if self._config.compile_baseline else 0.0
            try:
                found = examiner.ask(request, Found, timeout_s, runner.process)
            except TaskRefused as refused:
                raise HarnessError(f"the inputs that were drawn cannot be used: {refused}") from None
            process_exit = None
            if found.outcome == Outcome.CRASHED:
                with contextlib.suppress(TimeoutError):
                    process_exit = runner.process.wait(EXIT_S)
            runner.process.kill()
            if found.outcome == Outcome.CORRECT and evaluation.is_interpreted and self._config.compile_for:
                found = self._compiled(examiner, evaluation, prepared, source, found)
            return evaluation.verdict_of(found, process_exit)

    # ---- the Examiner

    def _started_examiner(self, evaluation: Evaluation) -> Examiner:
        """Return the Examiner. Start a new one if there is none that may serve this candidate."""
        reference = evaluation.task.reference
        if self._examiner is not None and (
            self._examiner.served >= MAX_TASKS
            or self._examiner.is_interpreted != evaluation.is_interpreted
            or self._settings_of not in ("", reference)
            or not self._examiner.running
        ):
            self.close()
        self._settings_of = reference if any(text in reference for text in PROCESS_WIDE) else ""
        if self._examiner is None:
            self._examiner = self._processes.start_examiner(evaluation.is_interpreted)
        self._examiner.served += 1
        return self._examiner

    def _remember(self, task_key: Hashable, prepared: Prepared) -> None:
        """Record that the Examiner has prepared this task, unless it is so large that it will be forgotten."""
        self.ready[task_key] = None
        self.ready.move_to_end(task_key)
        if prepared.is_large:
            del self.ready[task_key]
        while len(self.ready) > limits.READY_TASKS:
            self.ready.popitem(last=False)

    def _forget_task(self, failure: type[BaseException] | None, *_: object) -> None:
        """Free a large task's memory for other Examiners. After a failure, the whole slot is closed anyway."""
        if failure is None and self._examiner is not None:
            self._close_reference()
            self._examiner.ask(ForgetTask(), Done, limits.GRACE_S)

    # ---- the reference's Runner

    def _timed_reference(
        self, examiner: Examiner, evaluation: Evaluation, prepared: Prepared, lock: int | None
    ) -> Runner | None:
        """Return the reference's Runner if this candidate is to be timed. First have the reference timed in it without
        a candidate: as soon as the candidate's process has its code, it could disturb that."""
        if prepared.reference_report is None or prepared.reference_outputs is None:
            return None
        if self._reference is not None and not self._reference.process.running:
            self._close_reference()
        is_new = self._reference is None or prepared.is_new
        if self._reference is None:
            no_limit = self._processes.limits(None)
            self._reference = self._processes.start_runner(evaluation.is_interpreted, no_limit)
        if is_new:
            with _buffer(f"{evaluation.task.reference}\n\nModelNew = {evaluation.task.entry_point}\n") as source:
                self._reference.hand_over(
                    plan=prepared.plan,
                    source=source.fd,
                    report=prepared.reference_report,
                    inputs=prepared.inputs,
                    outputs=prepared.reference_outputs,
                )
        if is_new or not prepared.has_baseline:
            request = TimeReference(
                is_new=is_new,
                reference_channel=self._reference.channel.fd,
                reference_process=self._reference.process.pidfd,
                lock=lock,
            )
            examiner.ask(request, Done, limits.BASELINE_ANSWER_S + (0.0 if lock is None else MAX_TURN_WAITS_S))
        return self._reference

    def _close_reference(self) -> None:
        reference, self._reference = self._reference, None
        if reference is not None:
            reference.close()

    # ---- candidates' Runners

    def _candidate_runner(self, evaluation: Evaluation, time_limit_s: float) -> Runner:
        """Return a Runner for the candidate. If creating a CUDA context takes long, it was started ahead, and the next
        candidate's is started now."""
        processes, is_interpreted = self._processes, evaluation.is_interpreted
        has_streams = processes.device != "cpu" and speaks_of_streams(evaluation.candidate)
        if has_streams or evaluation.backend in BUILDS or not self._config.starts_ahead(processes.device):
            connections = OWN_CONNECTIONS if has_streams else CONNECTIONS
            return processes.start_runner(
                is_interpreted, processes.limits(time_limit_s, evaluation.backend), connections
            )
        started, self._next = self._next, None
        runner = (None if started is None else started.result()) or self._unlimited_runner(is_interpreted)
        if not runner.process.running:
            runner.close()
            runner = self._unlimited_runner(is_interpreted)
        self._next = processes.start_ahead(is_interpreted)
        return runner

    def _unlimited_runner(self, is_interpreted: bool) -> Runner:
        """Start a Runner without a time limit of its own: the Examiner ends a candidate that takes too long."""
        return self._processes.start_runner(is_interpreted, self._processes.limits(None))

    def _compiled(
        self, examiner: Examiner, evaluation: Evaluation, prepared: Prepared, source: SharedBuffer, found: Found
    ) -> Found:
        """Have a Runner without Triton's interpreter compile a correct candidate for the configured architecture.
        Return the findings about the candidate with its result."""
        time_limit_s = self._config.time_limit_s(evaluation.backend)
        with contextlib.ExitStack() as stack:
            runner = self._processes.start_runner(False, self._processes.limits(time_limit_s, evaluation.backend))
            stack.enter_context(runner.process)
            stack.callback(runner.channel.close)
            _hand_over(runner, prepared, source)
            request = CompileCandidate(
                backend=evaluation.backend,
                source=evaluation.candidate,
                time_limit_s=time_limit_s,
                channel=runner.channel.fd,
                process=runner.process.pidfd,
            )
            compiled = examiner.ask(request, Compiled, time_limit_s + limits.GRACE_S)
            runner.process.kill_tree()
        if compiled.outcome is None:
            return replace(found, kernels=compiled.kernels)
        return replace(
            found,
            outcome=compiled.outcome,
            reason=compiled.reason,
            feedback=compiled.feedback,
            compiled=False,
        )

    def _retire(self, process: Process) -> None:
        """Kill a candidate's process tree. The next candidate of the same task waits until it has ended, because until
        then the tree could write to that task's memory. On the CPU, and for large tasks, wait here."""
        if self._processes.device == "cpu" or self._is_large:
            process.close()
        else:
            self._retired = {source: ending for source, ending in self._retired.items() if not ending.done()}
            self._retired[self._reference_source] = self._processes.retire(process)

    # ---- ending

    def kill(self) -> None:
        """Kill the Examiner. A thread that waits for its answer gets an error."""
        if (examiner := self._examiner) is not None:
            examiner.kill()

    def close(self) -> None:
        """End all processes of this slot. The next candidate gets new ones."""
        self.ready.clear()
        self._close_reference()
        started, self._next = self._next, None
        if started is not None and not started.cancel():
            with contextlib.suppress(SandboxError, OSError):
                if (runner := started.result()) is not None:
                    runner.close()
        examiner, self._examiner = self._examiner, None
        if examiner is not None:
            examiner.close()


def _buffer(text: str) -> SharedBuffer:
    """Return shared memory that contains a source."""
    data = text.encode(errors="replace")
    buffer = SharedBuffer(len(data), "candidate")
    buffer.view[:] = data
    return buffer


def _hand_over(runner: Runner, prepared: Prepared, source: SharedBuffer) -> None:
    """Send a candidate's Runner its task."""
    runner.hand_over(
        plan=prepared.plan,
        source=source.fd,
        report=prepared.report,
        inputs=prepared.inputs,
        outputs=prepared.outputs,
    )


def _pipe_until(runner: Future[Runner | None], stack: contextlib.ExitStack) -> int:
    """Return the read end of a pipe whose write end is closed when the Runner has started."""
    read_end, write_end = os.pipe()
    stack.callback(os.close, read_end)
    runner.add_done_callback(lambda _: os.close(write_end))
    return read_end
