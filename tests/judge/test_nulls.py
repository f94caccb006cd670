"""Candidates that compute nothing never pass, whatever parameters a task happens to draw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.judge.config import FAMILIES
from kernel_coder.judge.examiner import prepared_task
from kernel_coder.judge.examiner.null_candidates import OTHER_OUTPUT, NullCandidates
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import Seeds
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.examiner.refusals import Refused
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.examiner.tolerance import Tolerance
from kernel_coder.judge.gpu.turns import GpuTurns

DRAWN = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Parameter({gate})
    def forward(self, x):
        return x.sin() * (self.gate > {above})
def get_inputs():
    return [torch.rand(4, 8)]
def get_init_inputs():
    return []
"""
OFTEN_ZERO = DRAWN.format(gate="torch.randn(1).sign()", above=0.0)
"""The gate's sign is drawn at construction. If it is negative, all outputs are zero."""

TURNS_ZERO = DRAWN.format(gate="torch.ones(1)", above=1.0)
"""For each candidate the gate moves from 1 by up to a quarter. If it moves down, all outputs are zero."""

NO_PARAMETERS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 0
def get_inputs():
    return [torch.rand(4, 8)]
def get_init_inputs():
    return []
"""

ZEROS = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        return torch.zeros_like(x)
"""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def made(reference: str, key: int) -> PreparedTask:
    task = {"reference": reference, "entry_point": "Model", "precision": "fp32"}
    return PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(key), GpuTurns())


def refused(key: int) -> bool:
    try:
        made(OFTEN_ZERO, key)
    except Refused as why:
        assert str(why) == "a candidate that returns zeros would pass"  # noqa: PT017 (half of them are not raised)
        return True
    return False


def test_parameters_that_make_the_output_constant_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = range(24)
    with monkeypatch.context() as patch:
        patch.setattr(prepared_task, "PARAMETER_DRAWS", 1)
        at_first = [key for key in keys if refused(key)]
    assert 6 <= len(at_first) <= 18
    assert len([key for key in keys if refused(key)]) <= 5  # one key of sixteen, on average: four draws
    for key in at_first:
        if refused(key):
            continue
        found = made(OFTEN_ZERO, key)
        assert found.reference.initial["gate"].item() == 1.0
        assert found.plan["seed"] == found.reference.seed
        torch.manual_seed(found.reference.seed)  # a candidate that draws its own parameters uses this seed
        assert torch.randn(1).item() > 0


OF_ONE_INPUT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {y}
def get_inputs():
    return [torch.rand(4, 8)]
def get_init_inputs():
    return []
"""


def test_families_that_fail_a_device_assertion_are_found_on_the_cpu() -> None:
    """On a GPU, torch's own check would fail as an assertion, after which this process could not use the GPU again."""
    within = ["own", "tiny", "ties"]  # these stay between 0 and 1
    for x, usable in (("x", within), ("x.sigmoid()", list(FAMILIES))):
        task = made(OF_ONE_INPUT.format(y=f"torch.nn.functional.binary_cross_entropy({x}, torch.full_like(x, 0.5))"), 1)
        assert task.families == usable
        assert set(task.skipped) == set(FAMILIES) - set(usable)
        reference, tried = task.reference, []
        reference.may_stop_gpu = True
        reference.try_on_cpu = lambda inputs, tried=tried, really=reference.try_on_cpu: (
            tried.append(1),
            really(inputs),
        )
        found = [isinstance(task.samples.try_sample(family), Sample) for family in ("own", "normal")]
        assert found == [True, "normal" in usable]
        assert len(tried) == 1


def test_small_noise_and_batch_statistics_are_steady_and_large_noise_is_refused() -> None:
    noisy = "x.sin() * (1 + {} * torch.rand_like(x))"
    made(OF_ONE_INPUT.format(y=noisy.format(1e-6)), 1)
    with pytest.raises(Refused, match="two calls on the same inputs differ"):
        made(OF_ONE_INPUT.format(y=noisy.format(1e-2)), 1)
    norm = "torch.nn.functional.batch_norm(x, torch.zeros(8), torch.ones(8), training=True)"
    made(OF_ONE_INPUT.format(y=norm), 1)


def test_task_without_parameters_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[int] = []
    build = Reference.build
    monkeypatch.setattr(Reference, "build", lambda self, turns: builds.append(1) or build(self, turns))
    with pytest.raises(Refused, match="zeros would pass"):
        made(NO_PARAMETERS, 0)
    assert len(builds) == 1


def sample(values: torch.Tensor, inputs: torch.Tensor | None = None) -> Sample:
    inputs = torch.linspace(3, 4, values.numel()).reshape(values.shape) if inputs is None else inputs
    exact = Tolerance(1e-4, 1e-4, 1e-4, 0.0)
    return Sample([inputs], [inputs], [], [values.double()], [exact], [None], [None], "own", {})


RAMP = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([torch.zeros(3, 4)], "zeros"),
        ([torch.ones(3, 4)], "ones"),
        ([torch.full((3, 4), 7.5)], "the mean"),
        ([torch.full((3, 4), 7.5), torch.full((3, 4), -2.0)], "the mean"),  # the mean differs from sample to sample
        ([RAMP, RAMP, RAMP], OTHER_OUTPUT),
    ],
)
def test_a_null_candidate_that_passes_on_every_sample_is_named(values: list[torch.Tensor], name: str) -> None:
    nulls = NullCandidates()
    for one in values:
        nulls.try_on(sample(one))
    with pytest.raises(Refused, match=f"^a candidate that returns {name} would pass$"):
        nulls.refuse()


def test_null_candidate_that_returns_an_input_is_named() -> None:
    nulls = NullCandidates()
    nulls.try_on(sample(RAMP, RAMP))
    with pytest.raises(Refused, match="returns an input would pass"):
        nulls.refuse()


def test_one_sample_can_clear_a_null_candidate_but_another_calls_output_needs_two_samples() -> None:
    nulls = NullCandidates()
    nulls.refuse()  # nothing is known yet
    nulls.try_on(sample(torch.zeros(3, 4)))
    nulls.try_on(sample(RAMP))
    nulls.refuse()
    assert not nulls.passing
    nulls = NullCandidates()
    nulls.try_on(sample(RAMP))
    assert set(nulls.passing) == {OTHER_OUTPUT}
    nulls.refuse()


def test_no_candidate_is_correct_if_its_parameters_let_a_null_candidate_pass() -> None:
    """The gate was above 1 when the task was prepared, and is at most 1 for this candidate."""

    def is_zero(key: int) -> bool:
        try:
            found = made(TURNS_ZERO, Seeds(key, "task").key)
        except Refused:
            return False
        found.refresh(Seeds(key))
        return found.reference.module.gate.item() <= 1.0

    key = next(key for key in range(100) if is_zero(key))
    config = JudgeConfig(seed=key, retries=0, timing=False, workers=1)
    with Judge("cpu", "torch", config=config) as judge:
        verdict = judge.evaluate(TURNS_ZERO, ZEROS)
        honest = judge.evaluate(TURNS_ZERO, TURNS_ZERO + "\nModelNew = Model\n")
    for one in (verdict, honest):
        assert one.outcome is Outcome.HARNESS_FAILED
        assert "a candidate that returns zeros would pass" in (one.reason or "")
    careless = JudgeConfig(checks=1, seed=key, retries=0, timing=False, workers=1, null_candidates=False)
    with Judge("cpu", "torch", config=careless) as judge:
        assert judge.evaluate(
            TURNS_ZERO, ZEROS
        ).correct  # zeros pass with these parameters if null candidates are not tried
