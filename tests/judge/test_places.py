"""Outputs that are indices, such as those of topk: indices of equal numbers may come in any order."""

from __future__ import annotations

import os

import pytest
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.tasks import Task

DEVICE = "cuda" if os.environ.get("KC_REQUIRE_CUDA") == "1" else "cpu"

REFERENCE = """
import torch

rows, columns, count = 32, 512, 8


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.topk(x, count, dim=-1)


def get_inputs():
    return [{drawn}]


def get_init_inputs():
    return []
"""

MANY_TIES = "torch.randint(-80, 80, (rows, columns)) / 16"
FEW_TIES = "torch.randn(rows, columns)"

OTHER_ORDER = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        values, places = torch.sort(x.flip(-1), dim=-1, descending=True, stable=True)
        places = x.shape[-1] - 1 - places
        return values[:, :8], places[:, :8]{change}
"""


@pytest.fixture(scope="module")
def judge() -> object:
    with Judge(DEVICE, config=JudgeConfig(timed_calls=40, profile=False, workers=1)) as judge:
        yield judge


@pytest.mark.parametrize(
    ("drawn", "change", "outcome"),
    [
        (MANY_TIES, "", Outcome.CORRECT),
        (FEW_TIES, "", Outcome.CORRECT),
        (MANY_TIES, ".roll(1, 0)", Outcome.WRONG_OUTPUT),
        (MANY_TIES, "[:, :1].expand(-1, 8).contiguous()", Outcome.WRONG_OUTPUT),
    ],
)
def test_ties_may_come_in_another_order_in_timed_calls_too(
    judge: Judge, drawn: str, change: str, outcome: Outcome
) -> None:
    task = Task(id="topk", source="test", reference=REFERENCE.format(drawn=drawn), backend="torch")
    verdict = judge.evaluate(task, OTHER_ORDER.format(change=change), "torch")
    assert verdict.outcome is outcome, verdict
    assert outcome is not Outcome.CORRECT or verdict.speedup is not None
