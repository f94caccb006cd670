"""New parameters and buffers for a reference after the timed calls: some changed elements, or other integers."""

from __future__ import annotations

import pytest
import torch
from kernel_coder.judge import JudgeConfig
from kernel_coder.judge.examiner.prepared_task import PreparedTask
from kernel_coder.judge.examiner.randomness import Seeds
from kernel_coder.judge.examiner.reference import CHANGED_SHARE, Reference
from kernel_coder.judge.gpu.turns import GpuTurns
from kernel_coder.judge.wire.module_calls import state_of
from torch import Tensor

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 100))
        self.gain = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("order", torch.randperm(100))
        self.register_buffer("table", torch.arange(100))
    def forward(self, x):
        return (x[:, self.order] + self.table) @ self.weight.t() * self.gain
def get_inputs():
    return [torch.randn(8, 100)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def reference() -> Reference:
    task = {"reference": SOURCE, "entry_point": "Model", "precision": "fp32"}
    return PreparedTask(task, JudgeConfig(), torch.device("cpu"), Seeds(1), GpuTurns()).reference


def state(reference: Reference, exact: bool = False) -> dict[str, Tensor]:
    module = reference.exact if exact else reference.module
    return {name: value.detach().clone() for name, value in state_of(module).items()}


def test_draw_some_changes_some_elements_and_at_least_one_of_each_parameter(reference: Reference) -> None:
    before = state(reference)
    reference.draw_some()
    after = state(reference)
    changed = float((before["weight"] != after["weight"]).double().mean())
    assert CHANGED_SHARE / 2 < changed < 2 * CHANGED_SHARE
    assert before["gain"] != after["gain"]
    assert torch.equal(before["order"], after["order"])
    assert all(torch.equal(value, state(reference, exact=True)[name].to(value.dtype)) for name, value in after.items())


def test_random_integers_are_drawn_anew_and_fixed_tables_stay(reference: Reference) -> None:
    before = state(reference)
    reference.draw_state(with_other_integers=True)
    after = state(reference)
    assert sorted(after["order"].tolist()) == list(range(100))
    assert not torch.equal(before["order"], after["order"])
    assert torch.equal(before["table"], after["table"])
    reference.draw_state()
    assert torch.equal(before["order"], state(reference)["order"])  # the next candidate gets the task's own again
