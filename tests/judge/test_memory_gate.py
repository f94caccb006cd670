"""Candidates that share a GPU's memory. The judge judges a candidate that finds too little memory again, alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kernel_coder.judge import Judge, JudgeConfig, Outcome, Verdict
from kernel_coder.judge.supervisor.errors import ExaminerLost
from kernel_coder.judge.supervisor.memory_gate import MemoryGate, is_out_of_memory
from kernel_coder.judge.supervisor.slot import Slot

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
def get_inputs():
    return [torch.rand(4)]
def get_init_inputs():
    return []
"""


def test_a_thread_that_is_alone_has_no_other_beside_it_and_all_threads_get_in() -> None:
    gate, beside, entered = MemoryGate(), [], []

    def sharer() -> None:
        for _ in range(50):
            with gate.shared():
                entered.append("shared")

    def exclusive() -> None:
        for _ in range(20):
            with gate.alone():
                beside.append(gate.inside)
                time.sleep(1e-4)
                beside.append(gate.inside)

    threads = [threading.Thread(target=one) for one in (sharer, exclusive, sharer, exclusive, sharer)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert beside == [1] * 80
    assert len(entered) == 150
    assert gate.inside == 0


def test_thread_leaves_the_gate_when_it_raises_an_exception() -> None:
    gate = MemoryGate()
    for enter in (gate.shared, gate.alone):
        with pytest.raises(KeyError), enter():
            raise KeyError
    assert gate.inside == 0


def verdict(outcome: Outcome, reason: str | None = None) -> Verdict:
    known: dict[str, Any] = {"feedback": "", "task": "t", "task_hash": "0" * 64, "candidate_hash": "0" * 64}
    return Verdict(
        outcome=outcome,
        compiled=outcome is not Outcome.COMPILE_ERROR,
        reason=reason,
        backend="triton",
        device="cuda:0",
        interpreted=False,
        versions={},
        **known,
    )


@pytest.mark.parametrize(
    ("outcome", "reason", "short"),
    [
        (Outcome.OUT_OF_MEMORY, "it ran out of memory", True),
        (Outcome.HARNESS_FAILED, "the task is refused: it is too large for this device (CUDA out of memory.)", True),
        (Outcome.CRASHED, "the Examiner failed: torch.OutOfMemoryError: CUDA out of memory.", True),
        (Outcome.COMPILE_ERROR, "no context can be made on GPU 0: CUDA_ERROR_OUT_OF_MEMORY", True),
        (Outcome.HARNESS_FAILED, "no room for a shared buffer of 2.25 GiB on GPU 0", True),
        (Outcome.RUNTIME_ERROR, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        (Outcome.RUNTIME_ERROR, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        (Outcome.RUNTIME_ERROR, "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", True),
        (Outcome.REJECTED, "no kernel of its own: the profiler recorded nothing on the device", False),
        (Outcome.WRONG_OUTPUT, "output 0 has 3 wrong elements", False),
        (Outcome.CORRECT, None, False),
    ],
)
def test_lack_of_memory_is_recognised_from_the_outcome_or_the_reason(
    outcome: Outcome, reason: str | None, short: bool
) -> None:
    assert is_out_of_memory(verdict(outcome, reason)) is short


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.OUT_OF_MEMORY, "it ran out of memory"),
        # If the memory is full, the profiler records nothing, not even the kernels of an honest candidate.
        (Outcome.REJECTED, "no kernel of its own: the profiler recorded nothing on the device"),
    ],
)
def test_a_candidate_that_lacks_memory_is_judged_again_alone(outcome: Outcome, reason: str) -> None:
    beside: list[int] = []
    with Judge("cpu", "torch", config=JudgeConfig(workers=3)) as judge:
        judge.device = "cuda:0"  # the judge takes its device for a GPU

        def in_a_slot(maker: Any) -> tuple[Verdict, dict[str, Any]]:
            time.sleep(0.02)
            beside.append(judge._memory_gate.inside)
            if judge._memory_gate.inside > 1:
                return verdict(outcome, reason), {}
            return verdict(Outcome.CORRECT), {}

        judge._in_a_slot = in_a_slot  # type: ignore[method-assign]
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: judge.evaluate(REFERENCE, "class ModelNew: x = 1"), range(3)))
        judge.device = "cpu"
    assert [one.outcome for one in found] == [Outcome.CORRECT] * 3
    assert max(beside) > 1
    assert beside[-1] == 1


def test_examiner_that_lacks_memory_is_tried_once_beside_others_then_alone_with_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def examine(slot: Any, evaluation: Any) -> Verdict:
        if evaluation.task.id != "probe":
            asked.append(evaluation.is_alone)
        slot.prepared, slot.candidate_ran = None, True
        raise ExaminerLost("the Examiner failed: torch.OutOfMemoryError: CUDA out of memory.")

    with Judge("cpu", "torch", config=JudgeConfig(workers=2, retries=1)) as judge:
        judge.device = "cuda:0"  # the judge takes its device for a GPU
        monkeypatch.setattr("kernel_coder.judge.supervisor.slot.Slot.examine", examine)
        found = judge.evaluate(REFERENCE, "class ModelNew: x = 1")
        judge.device = "cpu"
    assert found.outcome is Outcome.CRASHED
    assert asked == [False, True, True]


@pytest.mark.parametrize(
    ("said", "admitted", "reason"),
    [
        ("the Examiner gave no answer for 180 s", None, "the Examiner gave no answer for 180 s"),
        ("torch.OutOfMemoryError: CUDA out of memory.", False, "it is too large for this device: "),
    ],
)
def test_admission_is_unknown_if_the_examiner_is_lost_unless_the_task_is_too_large(
    monkeypatch: pytest.MonkeyPatch, said: str, admitted: bool | None, reason: str
) -> None:
    examine = Slot.examine

    def lost(slot: Any, evaluation: Any) -> Verdict:
        if evaluation.task.id == "probe":
            return examine(slot, evaluation)
        slot.prepared, slot.candidate_ran = None, True
        raise ExaminerLost(said)

    with Judge("cpu", "torch", config=JudgeConfig(workers=1, retries=1, timing=False)) as judge:
        monkeypatch.setattr("kernel_coder.judge.supervisor.slot.Slot.examine", lost)
        found = judge.admit(REFERENCE)
        candidate = judge.evaluate(REFERENCE, "class ModelNew: x = 1")
    assert found.admitted is admitted
    assert (found.reason or "").startswith(reason)
    assert found.verdict is None
    assert candidate.outcome is Outcome.CRASHED  # the candidate may have caused the loss of the Examiner
