"""A ratio exactly on a bound is neither clipped nor counted as clipped, in every variant of the loss from logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from anywhere import on
from kernel_coder import LossSpec, ops, reference
from kernel_coder.ops import LOSS_METRICS
from tolerances import assert_close
from torch import Tensor

pytestmark = pytest.mark.usefixtures("chosen_kernels")

#: Maps a ratio r, its log and a share to spec fields that place a bound between 1 and r: at r itself for a share of 1,
#: closer to 1 for a smaller share. Every other bound is far away.
Bound = Callable[[float, float, float], dict[str, Any]]
FAR = 100.0


def band(r: float, log_r: float, share: float) -> dict[str, Any]:
    # 1 - (1 - r) and 1 + (r - 1) are r to the last bit for r between 0.5 and 2.
    if r < 1:
        return {"epsilon": share * (1 - r), "epsilon_high": FAR}
    return {"epsilon": 0.9, "epsilon_high": share * (r - 1)}


def log_band(r: float, log_r: float, share: float) -> dict[str, Any]:
    if r < 1:
        return {"epsilon": share * -log_r, "epsilon_high": FAR}
    return {"epsilon": FAR, "epsilon_high": share * log_r}


def log_clamp(r: float, log_r: float, share: float) -> dict[str, Any]:
    return {"log_ratio_clamp": share * abs(log_r), "epsilon": 0.9, "epsilon_high": FAR}


def largest(name: str, **others: float) -> Bound:
    return lambda r, log_r, share: {**others, name: 1 + share * (r - 1)}


LEVELS = ["token", "sequence", "sequence_token", "sequence_sum"]
UP, DOWN = 1, -1
#: Each variant: its fields, its bound, and whether the bound acts for given signs of A and of log r.
Case = tuple[dict[str, Any], Bound, dict[tuple[int, int], bool]]
ONE_SIDED = {(1, UP): True, (1, DOWN): False, (-1, UP): False, (-1, DOWN): True}
TWO_SIDED = dict.fromkeys(ONE_SIDED, True)
CASES: dict[str, Case] = {}
for level in LEVELS:
    fields = {"importance_sampling_level": level}
    wide = {"epsilon": 0.9, "epsilon_high": FAR}
    CASES |= {
        f"clip, {level}": (fields, band, ONE_SIDED),
        f"delta, {level}": (fields, largest("delta", epsilon=0.9, epsilon_high=0.01), {(-1, UP): True}),
        f"dual clip, {level}": (fields, largest("dual_clip", **wide), {(1, UP): False, (-1, UP): True}),
        f"cispo, {level}": (
            {**fields, "surrogate": "cispo"},
            largest("epsilon_high"),
            {(1, UP): True, (-1, UP): True},
        ),
        f"cispo, two-sided, {level}": ({**fields, "surrogate": "cispo_two_sided"}, band, TWO_SIDED),
        f"clamp, {level}": (fields, log_clamp, TWO_SIDED),
    }
CASES["gmpo"] = ({"surrogate": "gmpo", "importance_sampling_level": "sequence"}, log_band, ONE_SIDED)


class Rows:
    """Two equal tokens of one sequence, so that each level has the same ratio (sequence_sum has its square)."""

    def __init__(self, device: str, dtype: torch.dtype, sign: int, side: int) -> None:
        rng = torch.Generator().manual_seed(0)
        vocab = 2000 if device == "cpu" else 40000
        self.logits = (3 * torch.randn(vocab, generator=rng)).to(dtype).repeat(2, 1)
        self.ids = torch.tensor([5, 5])
        logprobs = reference.token_logprobs(self.logits, self.ids)[0]
        self.inputs = {
            "advantages": torch.full((2,), 0.7 * sign),
            "old_logprobs": (logprobs - 0.11 * side).float(),
            "cu_seqlens": torch.tensor([0, 2]),
        }
        self.device = device

    def run(self, spec: LossSpec, inplace: bool) -> tuple[Tensor, dict[str, float]]:
        """The gradient of the logits, and the metrics."""
        given = self.logits.to(self.device, copy=True).requires_grad_()
        there = on(self.device, self.inputs)
        out = ops.grpo_loss(given, self.ids.to(self.device), there.pop("advantages"), spec, inplace=inplace, **there)
        (gradient,) = torch.autograd.grad(out.loss, given)
        return gradient.cpu(), dict(zip(LOSS_METRICS, out.metrics.tolist(), strict=True))

    def run_reference(self, spec: LossSpec) -> Tensor:
        leaf = self.logits.double().requires_grad_()
        inputs = dict(self.inputs)
        loss, _ = reference.grpo_loss(leaf, self.ids, inputs.pop("advantages"), spec, **inputs)
        return torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("name", "sign", "side"), [(name, sign, side) for name, (_, _, acts) in CASES.items() for sign, side in acts]
)
def test_bound_changes_the_gradient_only_if_the_ratio_is_past_it(
    device: str, name: str, sign: int, side: int, inplace: bool
) -> None:
    fields, bound, acts = CASES[name]
    rows = Rows(device, torch.bfloat16, sign, side)
    free = LossSpec(**fields, **(bound(FAR, 5.0, 1.0) if side == UP else bound(0.1, -5.0, 1.0)))
    wanted, metrics = rows.run(free, inplace)
    # Every bound is far away here. The metrics give the ratio exactly as the op computes it.
    r, log_r = (
        metrics["ratio"] / 2,
        metrics["logratio"] / (1 if free.importance_sampling_level == "sequence_sum" else 2),
    )
    assert (r > 1) == (side == UP)
    assert wanted.any()

    on_it, metrics = rows.run(LossSpec(**fields, **bound(r, log_r, 1.0)), inplace)
    assert torch.equal(on_it, wanted)
    assert metrics["clipped_low"] == metrics["clipped_high"] == 0

    past = LossSpec(**fields, **bound(r, log_r, 0.9))
    beyond, _ = rows.run(past, inplace)
    assert torch.equal(beyond, wanted) != acts[sign, side]
    assert_close(beyond, rows.run_reference(past))


def test_dppo_with_epsilon_0_keeps_the_gradient_of_an_unchanged_probability(device: str) -> None:
    rows = Rows(device, torch.bfloat16, 1, UP)
    for inplace in (False, True):
        found = []
        for epsilon in (0.5, 0.0):
            spec = LossSpec(surrogate="dppo", epsilon=epsilon, epsilon_high=epsilon)
            rows.inputs["old_logprobs"] = None
            found.append(rows.run(spec, inplace)[0])
        assert found[0].any()
        assert torch.equal(*found)
