"""CUDA streams that a candidate creates. The caller's stream must wait for them."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.judge.examiner.source_checks import speaks_of_streams
from kernel_coder.judge.runner.side_streams import CONNECTIONS, OWN_CONNECTIONS, VARIABLE, HeldStreams
from kernel_coder.judge.sandbox.config import Limits
from kernel_coder.judge.supervisor.evaluation import Evaluation
from kernel_coder.judge.supervisor.slot import Slot
from kernel_coder.tasks import Task

SOFTMAX = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1)


def get_inputs():
    return [torch.randn(512, 512)]


def get_init_inputs():
    return []
"""

ON_A_STREAM = """import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.side = [torch.cuda.Stream(priority={priority}) for _ in range({number} + 1)][-1]

    def forward(self, x):
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            out = torch.softmax(x, 1)
        {wait}
        return out
"""
WAIT = "torch.cuda.current_stream().wait_stream(self.side)"
TASK = Task(id="softmax", source="tests", reference=SOFTMAX)
CONFIG = JudgeConfig(timed_calls=20, timing_s=1.0, workers=4)


@pytest.mark.parametrize("source", ["s = torch.cuda.Stream()", "cudaStream_t s;", "torch.cuda.stream(s)", "# STREAM"])
def test_candidate_that_may_use_streams_is_recognised_by_its_source(source: str) -> None:
    assert speaks_of_streams(source)


@pytest.mark.parametrize(
    ("where", "source", "connections"),
    [
        ("cuda:0", "torch.cuda.Stream()", OWN_CONNECTIONS),
        ("cuda:0", "torch.relu(x)", CONNECTIONS),
        ("cpu", "sys.stdout: a stream", CONNECTIONS),
    ],
)
def test_only_a_gpu_candidate_with_streams_gets_several_hardware_queues(
    monkeypatch: pytest.MonkeyPatch, where: str, source: str, connections: int
) -> None:
    with Judge("cpu", config=JudgeConfig(prestart=False)) as judge:
        processes = judge._processes
        monkeypatch.setattr(processes, "device", where)
        monkeypatch.setattr(processes, "visible", "0")
        asked: list[str] = []

        def start_runner(is_interpreted: bool, limits: Limits, connections: int = CONNECTIONS) -> None:
            asked.append(processes.environment(is_interpreted, connections)[VARIABLE])

        monkeypatch.setattr(processes, "start_runner", start_runner)
        evaluation = Evaluation(TASK, source, "torch", device=where, config=judge.config, versions={})
        Slot(processes, lambda: True)._candidate_runner(evaluation, 1.0)
        assert asked == [str(connections)]
        assert processes.environment(False)[VARIABLE] == str(CONNECTIONS)


def test_the_examiner_has_several_hardware_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    with Judge("cpu", config=JudgeConfig(prestart=False)) as judge:
        processes, started = judge._processes, Mock()
        monkeypatch.setattr(processes, "visible", "0")
        monkeypatch.setattr(processes, "_server", lambda is_interpreted: started)
        processes.start_examiner(False).close()
        assert started.start.call_args.kwargs["environment"][VARIABLE] == str(OWN_CONNECTIONS)


def test_no_stream_is_held_with_one_hardware_queue_or_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "8"):
        monkeypatch.setenv(VARIABLE, value)
        assert not HeldStreams(torch.device("cpu"))._streams
    monkeypatch.delenv(VARIABLE)
    assert not HeldStreams(torch.device("cuda"))._streams


@pytest.mark.gpu
def test_candidate_that_does_not_make_the_caller_wait_for_its_stream_is_wrong(device: str) -> None:
    whose = [(number, priority) for number in (0, 1, 6, 7, 31) for priority in (0, -1)]
    sources = [ON_A_STREAM.format(number=number, priority=priority, wait="") for number, priority in whose]
    with Judge(device, config=CONFIG) as judge:
        verdicts = list(judge.evaluate_many((TASK, source, "torch") for source in sources))
    outcomes = {one: verdict.outcome for one, verdict in zip(whose, verdicts, strict=True)}
    assert set(outcomes.values()) == {Outcome.WRONG_OUTPUT}, outcomes
    assert all("Streams of its own" in verdict.feedback for verdict in verdicts)


@pytest.mark.gpu
def test_candidate_that_makes_the_caller_wait_for_its_stream_is_correct(device: str) -> None:
    sources = [ON_A_STREAM.format(number=0, priority=priority, wait=WAIT) for priority in (0, -1)]
    with Judge(device, config=CONFIG) as judge:
        verdicts = list(judge.evaluate_many((TASK, source, "torch") for source in sources))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.CORRECT] * 2, verdicts
