"""The presets equal the losses of TRL and verl.

The formulas of TRL 1.16.0 and verl b178a3cd are written again here, with autograd on padded [rows, columns] tensors.
Each has the reduction of its library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from anywhere import anywhere
from kernel_coder import LossSpec, ops
from tolerances import assert_close
from torch import Tensor

pytestmark = pytest.mark.usefixtures("ops_run_there")
policy_loss = anywhere(ops.policy_loss)

LENGTHS = torch.tensor([5, 2, 7, 1])
ROWS, COLUMNS = len(LENGTHS), int(LENGTHS.max())
VALID = torch.arange(COLUMNS) < LENGTHS[:, None]
RNG = torch.Generator().manual_seed(0)


def noise(scale: float) -> Tensor:
    return scale * torch.randn(ROWS, COLUMNS, generator=RNG, dtype=torch.float64)


LOGP = -noise(1.0).abs()
OLD, REF = LOGP + noise(0.3), LOGP + noise(0.5)
ROLLOUT = OLD + noise(0.1)
ADVANTAGES = torch.tensor([1.3, -0.7, -1.1, 0.4], dtype=torch.float64)
A = ADVANTAGES[:, None]
M = VALID.double()

Padded = Callable[[Tensor], Tensor]


def rows_mean(x: Tensor) -> Tensor:
    return (x * M).sum(1) / M.sum(1)


def trl_clip(logp: Tensor, low: float = 0.2, high: float = 0.2, delta: float | None = None) -> Tensor:
    r = (logp - OLD).exp()
    clipped = r.clamp(1 - low, 1 + high)
    if delta is not None:
        r = r.clamp(max=delta)
    return -torch.min(r * A, clipped * A)


def trl_sequence_clip(logp: Tensor, low: float, high: float) -> Tensor:
    s = rows_mean(logp - OLD)[:, None].exp()
    return -torch.min(s * A, s.clamp(1 - low, 1 + high) * A)


def trl_kl(logp: Tensor) -> Tensor:
    return (REF - logp).exp() - (REF - logp) - 1


def trl_default(logp: Tensor) -> Tensor:
    weight = ((OLD - ROLLOUT) * M).sum(1, keepdim=True).exp()
    weight = weight.masked_fill(weight > 3.0, 0.0)
    loss = trl_clip(logp) * weight + 0.1 * trl_kl(logp) * (logp - OLD).exp()
    return (loss * M).sum() / M.sum()


def trl_sapo(logp: Tensor) -> Tensor:
    tau = torch.full_like(A, 1.05).masked_fill(A > 0, 1.0)
    loss = -torch.sigmoid(tau * ((logp - OLD).exp() - 1)) * 4 / tau * A
    return rows_mean(loss).mean()


def trl_vespo(logp: Tensor) -> Tensor:
    log_w = ((logp - OLD).clamp(-20, 20) * M).sum(1, keepdim=True).clamp(math.log(1e-8), 20).detach()
    k, lam = torch.full_like(A, 3.0).masked_fill(A >= 0, 2.0), torch.full_like(A, 2.0).masked_fill(A >= 0, 3.0)
    phi = (lam + k * log_w - lam * log_w.exp()).exp()
    return (-phi * A * logp * M).sum() / M.sum()


def trl_gmpo(logp: Tensor) -> Tensor:
    x = logp - OLD
    clamped = x.clamp(-0.4, 0.4)
    x = torch.where(A > 0, torch.minimum(x, clamped), torch.maximum(x, clamped))
    return (-rows_mean(x).exp() * ADVANTAGES).mean()


def trl_rloo(logp: Tensor) -> Tensor:
    s = ((logp - OLD) * M).sum(1).exp()
    return -torch.min(s * ADVANTAGES, s.clamp(0.8, 1.2) * ADVANTAGES).mean()


def verl_default(logp: Tensor) -> Tensor:
    r = (logp - OLD).clamp(-20, 20).exp()
    clipped = torch.maximum(-A * r, -A * r.clamp(0.8, 1.2))
    loss = torch.where(A < 0, torch.min(-A * 3.0, clipped), clipped)
    q = (REF - logp).clamp(-20, 20)
    return ((loss + 0.001 * (q.exp() - q - 1).clamp(-10, 10)) * M).sum() / M.sum()


def verl_gspo(logp: Tensor) -> Tensor:
    log_s = logp - logp.detach() + rows_mean(logp - OLD)[:, None].detach()
    s = log_s.clamp(max=10.0).exp()
    return rows_mean(torch.maximum(-A * s, -A * s.clamp(1 - 3e-4, 1 + 4e-4))).mean()


def verl_cispo(logp: Tensor) -> Tensor:
    r = (logp - OLD).clamp(-20, 20).exp()
    return (-r.clamp(0.8, 1.2).detach() * A * logp * M).sum() / M.sum()


CASES: list[tuple[str, dict[str, Any], Padded]] = [
    ("grpo", {}, lambda logp: rows_mean(trl_clip(logp)).mean()),
    ("grpo", {"beta": 0.1}, lambda logp: rows_mean(trl_clip(logp) + 0.1 * trl_kl(logp)).mean()),
    ("grpo", {"delta": 1.3}, lambda logp: rows_mean(trl_clip(logp, delta=1.3)).mean()),
    ("bnpo", {}, lambda logp: (trl_clip(logp) * M).sum() / M.sum()),
    ("dapo", {}, lambda logp: (trl_clip(logp, high=0.28) * M).sum() / M.sum()),
    ("dr_grpo", {"length_constant": 64.0}, lambda logp: (trl_clip(logp) * M).sum() / (ROWS * 64)),
    ("cispo", {}, lambda logp: (-(logp - OLD).exp().clamp(max=5.0).detach() * A * logp * M).sum() / M.sum()),
    ("gspo", {}, lambda logp: rows_mean(trl_sequence_clip(logp, 3e-4, 4e-4)).mean()),
    ("gspo", {"epsilon": 0.2, "epsilon_high": 0.3}, lambda logp: rows_mean(trl_sequence_clip(logp, 0.2, 0.3)).mean()),
    ("luspo", {"epsilon": 0.2}, lambda logp: (trl_sequence_clip(logp, 0.2, 4e-4) * M).sum(1).mean()),
    ("sapo", {}, trl_sapo),
    ("vespo", {}, trl_vespo),
    ("gmpo", {}, trl_gmpo),
    ("rloo", {}, trl_rloo),
    ("trl", {"beta": 0.1}, trl_default),
    ("verl", {"beta": 0.001}, verl_default),
    ("gspo_token", {}, verl_gspo),
    ("cispo_verl", {}, verl_cispo),
]


@pytest.mark.parametrize(
    ("preset", "changes", "padded"), CASES, ids=[f"{name}{changes or ''}" for name, changes, _ in CASES]
)
def test_preset_equals_the_loss_of_its_library(preset: str, changes: dict[str, Any], padded: Padded) -> None:
    theirs = LOGP.clone().requires_grad_()
    wanted = padded(theirs)
    wanted.backward()
    assert theirs.grad is not None

    ours = LOGP[VALID].clone().requires_grad_()
    out = policy_loss(
        ours,
        ADVANTAGES,
        LossSpec.preset(preset, **changes),
        old_logprobs=OLD[VALID],
        ref_logprobs=REF[VALID],
        rollout_logprobs=ROLLOUT[VALID],
        cu_seqlens=torch.nn.functional.pad(LENGTHS.cumsum(0), (1, 0)),
    )
    out.loss.backward()
    assert ours.grad is not None
    assert float(out.loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-12)
    assert_close(ours.grad, theirs.grad[VALID])
    assert ours.grad.any() or preset in (
        "gspo",
        "gspo_token",
        "rloo",
    )  # a sequence ratio may leave its band in every row
