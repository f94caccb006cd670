"""Tasks whose tensors have several dtypes, as in quantized layers. No tensor is converted for the candidate."""

from __future__ import annotations

import os

import pytest
from kernel_coder.judge import Judge, JudgeConfig, Outcome
from kernel_coder.tasks import Task

DEVICE = "cuda" if os.environ.get("KC_REQUIRE_CUDA") == "1" else "cpu"

REFERENCE = """
import torch
import torch.nn as nn

rows, columns, depth = 256, 192, 64


class Model(nn.Module):
    def __init__(self, columns, depth):
        super().__init__()
        weight = torch.randn(columns, depth)
        scale = weight.abs().amax(1) / 448
        self.register_buffer("weight", (weight / scale[:, None]).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale)
        self.bias = nn.Parameter(torch.randn(columns, dtype=torch.bfloat16))

    def forward(self, x):
        product = x.to(torch.bfloat16) @ self.weight.to(torch.bfloat16).T
        return (product.float() * self.scale + self.bias.float()).to(torch.bfloat16)


def get_inputs():
    return [torch.randn(rows, depth).to(torch.float8_e4m3fn)]


def get_init_inputs():
    return [columns, depth]
"""

CHECKED = REFERENCE.replace(
    "        product",
    "        found = [one.dtype for one in (x, self.weight, self.scale, self.bias)]\n"
    "        assert found == [torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float32, torch.bfloat16], found\n"
    "        product",
)


@pytest.fixture(scope="module")
def judge() -> object:
    with Judge(DEVICE, config=JudgeConfig(timing=False, profile=False, workers=1)) as judge:
        yield judge


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (("", ""), Outcome.CORRECT),
        (  # rounds once where the reference rounds twice
            ("x.to(torch.bfloat16) @ self.weight.to(torch.bfloat16).T", "x.float() @ self.weight.float().T"),
            Outcome.CORRECT,
        ),
        ((" * self.scale", " * self.scale.mean()"), Outcome.WRONG_OUTPUT),
        (("+ self.bias.float()", "+ 1"), Outcome.WRONG_OUTPUT),
        (
            ("self.weight.to(torch.bfloat16)", "(self.weight.float() / 32).round().mul(32).bfloat16()"),
            Outcome.WRONG_OUTPUT,
        ),
    ],
)
def test_a_quantized_layer_is_judged_in_its_own_dtypes(judge: Judge, change: tuple[str, str], outcome: Outcome) -> None:
    candidate = CHECKED.replace("class Model(", "class ModelNew(")
    assert change[0] in candidate
    verdict = judge.evaluate(
        Task(id="quantized", source="test", reference=REFERENCE), candidate.replace(*change, 1), "torch"
    )
    assert verdict.outcome is outcome, verdict.reason


ATTENTION = """
import torch


class Model(torch.nn.Module):
    def forward(self, query, key, value):
        scores = query.float() @ key.float().mT * query.shape[-1] ** -0.5
        return (torch.softmax(scores, -1) @ value.float()).to(query.dtype)


def get_inputs():
    return [torch.randn(4, 128, 64, dtype=torch.bfloat16) for _ in range(3)]


def get_init_inputs():
    return []
"""

HEAVY_TAIL = ATTENTION.replace(
    "        scores", "        return torch.exp(4 * query.float()).to(query.dtype)\n        scores"
)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("reference", "change", "outcome"),
    [
        (ATTENTION, ("-1) @ value.float()", "-1).bfloat16() @ value"), Outcome.CORRECT),  # as FlashAttention does
        (ATTENTION, ("-1) @", "-1).to(torch.float8_e4m3fn).float() @"), Outcome.WRONG_OUTPUT),
        (ATTENTION, ("value.float()", "(value.float() * 12).round() / 12"), Outcome.WRONG_OUTPUT),
        (
            HEAVY_TAIL,
            ("torch.exp(4 * query.float())", "torch.exp(4 * query.float()).relu().sub(1e-3)"),
            Outcome.WRONG_OUTPUT,
        ),
    ],
)
def test_candidate_for_bfloat16_inputs_may_round_intermediate_values_to_bfloat16(
    judge: Judge, precision: str, reference: str, change: tuple[str, str], outcome: Outcome
) -> None:
    candidate = reference.replace(*change)
    assert candidate != reference
    task = Task(id="attention", source="test", reference=reference, precision=precision, backend="torch")
    verdict = judge.evaluate(task, candidate.replace("class Model", "class ModelNew"), "torch")
    assert verdict.outcome is outcome, verdict.feedback


PRODUCT = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(256, 4096).to(torch.float8_e4m3fn))

    def forward(self, x):
        return x.to(torch.bfloat16) @ self.weight.to(torch.bfloat16).T


def get_inputs():
    return [(torch.rand(256, 4096) * 8 - 4).to(torch.float8_e4m3fn)]


def get_init_inputs():
    return []
"""

IN_PIECES = """
        x, weight, total = x.float(), self.weight.float(), torch.zeros(len(x), 256, device=x.device)
        for at in range(0, 4096, 32):
            total += x[:, at : at + 32] @ weight[:, at : at + 32].T
            total = (total.view(torch.int32) & ~((1 << BITS) - 1)).view(torch.float32)
        return total.to(torch.bfloat16)
"""


@pytest.mark.parametrize(("bits_lost", "outcome"), [(10, Outcome.CORRECT), (14, Outcome.WRONG_OUTPUT)])
def test_product_of_8_bit_numbers_may_be_summed_as_coarsely_as_by_tensor_cores(
    judge: Judge, bits_lost: int, outcome: Outcome
) -> None:
    """Hopper's tensor cores keep 13 bits after the point of a sum of 8-bit products. That matters for small results."""
    candidate = PRODUCT.replace("class Model(", "class ModelNew(")
    code = IN_PIECES.replace("BITS", str(bits_lost))
    candidate = candidate.replace("\n        return x.to(torch.bfloat16) @ self.weight.to(torch.bfloat16).T\n", code)
    assert "total" in candidate
    verdict = judge.evaluate(Task(id="product", source="test", reference=PRODUCT), candidate, "torch")
    assert verdict.outcome is outcome, verdict.reason
