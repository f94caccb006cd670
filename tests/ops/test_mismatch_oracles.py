"""The correction for a mismatch of sampler and trainer equals the published formulas.

The expected numbers come from plain Python on lists of floats: no tensor, no op, no reference of ours. The rules:
truncated importance sampling (a weight min(rho, C)), masking of tokens or sequences outside of bounds, rejection of
sequences by the geometric mean ``exp(mean log rho)``, and the veto of a sequence by one token. Dr. Kernel's recipe
combines the last two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from kernel_coder import LossSpec, ops
from kernel_coder.train.metrics import mismatch_metrics

RNG = torch.Generator().manual_seed(11)
LENGTHS = [4, 6, 3, 5, 1]
BOUNDS = [0, *itertools.accumulate(LENGTHS)]
TOKENS = BOUNDS[-1]
LOGP = [-abs(x) - 0.05 for x in torch.randn(TOKENS, generator=RNG, dtype=torch.float64).tolist()]
OLD = [x + 0.2 * d for x, d in zip(LOGP, torch.randn(TOKENS, generator=RNG, dtype=torch.float64).tolist(), strict=True)]
ADVANTAGES = [1.2, -0.8, 0.5, -1.5, 0.9]

# log rho = old - rollout. The sequences: a mean of 4e-4; a mean of 0.003; a mean of 0 with one token that the trainer
# finds ten thousand times less likely; a wide spread; a single token.
LOG_RHO = [
    *(0.05, -0.0484, 0.1, -0.1),
    *(0.02, -0.002, 0.0, 0.0, 0.0, 0.0),
    *(math.log(0.9e-4), -math.log(0.9e-4) / 2, -math.log(0.9e-4) / 2),
    *(0.8, -1.2, 0.5, 0.3, -0.1),
    0.0005,
]
ROLLOUT = [old - x for old, x in zip(OLD, LOG_RHO, strict=True)]

Weights = Callable[[list[float]], list[float]]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def token_losses(row: int, epsilon_high: float, dual_clip: float | None) -> list[float]:
    """-min(r A, clip(r, 0.8, 1 + epsilon_high) A); where A < 0 at most -c A."""
    found = []
    for t in range(BOUNDS[row], BOUNDS[row + 1]):
        ratio, advantage = math.exp(LOGP[t] - OLD[t]), ADVANTAGES[row]
        loss = max(-ratio * advantage, -clip(ratio, 0.8, 1 + epsilon_high) * advantage)
        if dual_clip is not None and advantage < 0:
            loss = min(loss, -dual_clip * advantage)
        found.append(loss)
    return found


def log_rho(row: int) -> list[float]:
    return [OLD[t] - ROLLOUT[t] for t in range(BOUNDS[row], BOUNDS[row + 1])]


def geometric_mean(logs: list[float]) -> float:
    return math.prod(math.exp(x) for x in logs) ** (1 / len(logs))


def inside(x: float, low: float, high: float) -> float:
    return float(low <= x <= high)


def ours(spec: LossSpec, device: str) -> ops.LossOutput:
    def put(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    return ops.policy_loss(
        put(LOGP),
        put(ADVANTAGES),
        spec,
        old_logprobs=put(OLD),
        rollout_logprobs=put(ROLLOUT),
        cu_seqlens=torch.tensor(BOUNDS, device=device),
    )


def test_dr_kernel_preset_equals_its_published_recipe(device: str) -> None:
    """Clip 0.2 and 0.28, dual clip 3; a turn is kept if 0.999 <= exp(mean log rho) <= 1.001 and no rho is under 1e-4;
    no weights; token sums / 1000, mean over all turns, the rejected ones included."""
    kept, total = [], 0.0
    for row in range(len(LENGTHS)):
        logs = log_rho(row)
        keep = 0.999 <= geometric_mean(logs) <= 1.001 and min(map(math.exp, logs)) >= 1e-4
        kept.append(keep)
        total += sum(token_losses(row, 0.28, 3.0)) / 1000 if keep else 0.0
    assert kept == [True, False, False, False, True]
    out = ours(LossSpec.preset("dr_kernel"), device)
    assert float(out.loss) == pytest.approx(total / len(LENGTHS), rel=1e-12)
    sums = dict(zip(ops.LOSS_METRICS, out.metrics.tolist(), strict=True))
    assert sums["rejected"] == 6 + 3 + 5
    assert sums["vetoed_sequences"] == 1
    # The mean of the third turn is within the bounds, so only the veto can drop the turn.
    assert 0.999 <= geometric_mean(log_rho(2)) <= 1.001


def test_dual_clip_of_the_recipe_bounds_the_loss_of_a_bad_answer(device: str) -> None:
    spec = LossSpec.preset("dr_kernel", reduction="sum", mismatch="none", mismatch_min=0.0, mismatch_max=None)
    old = torch.tensor([-3.0], dtype=torch.float64, device=device)
    bounds = torch.tensor([0, 1], device=device)
    more = {"old_logprobs": old, "rollout_logprobs": old, "cu_seqlens": bounds}
    out = ops.policy_loss(old + math.log(10), old.new_tensor([-2.0]), spec, **more)
    assert float(out.loss) == pytest.approx(6.0)  # 3 * 2, where the ratio alone would give 20


CASES: dict[str, tuple[LossSpec, Weights]] = {
    "token truncation": (
        LossSpec(mismatch="token_truncate", mismatch_max=1.05, reduction="sum"),
        lambda logs: [min(math.exp(x), 1.05) for x in logs],
    ),
    "token truncation from below": (
        LossSpec(mismatch="token_truncate", mismatch_min=0.95, mismatch_max=1.05, reduction="sum"),
        lambda logs: [clip(math.exp(x), 0.95, 1.05) for x in logs],
    ),
    "token masking": (
        LossSpec(mismatch="token_mask", mismatch_min=0.9, mismatch_max=1.2, reduction="sum"),
        lambda logs: [math.exp(x) * inside(math.exp(x), 0.9, 1.2) for x in logs],
    ),
    "sequence truncation": (
        LossSpec(mismatch="sequence_truncate", mismatch_max=1.1, reduction="sum"),
        lambda logs: [min(math.exp(sum(logs)), 1.1)] * len(logs),
    ),
    "sequence masking": (
        LossSpec(mismatch="sequence_mask", mismatch_min=0.5, mismatch_max=1.01, reduction="sum"),
        lambda logs: [math.exp(sum(logs)) * inside(math.exp(sum(logs)), 0.5, 1.01)] * len(logs),
    ),
    "geometric rejection": (
        LossSpec(mismatch="geometric_mask", mismatch_min=0.999, mismatch_max=1.001, reduction="sum"),
        lambda logs: [inside(geometric_mean(logs), 0.999, 1.001)] * len(logs),
    ),
    "geometric rejection, weights kept": (
        LossSpec(mismatch="geometric", mismatch_min=0.999, mismatch_max=1.002, reduction="sum"),
        lambda logs: [math.exp(x) * inside(geometric_mean(logs), 0.999, 1.002) for x in logs],
    ),
    "veto": (
        LossSpec(token_veto=1e-4, reduction="sum"),
        lambda logs: [float(all(math.exp(x) >= 1e-4 for x in logs))] * len(logs),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_mismatch_mode_equals_its_formula(device: str, case: str) -> None:
    spec, weights = CASES[case]
    total, rejected = 0.0, 0
    for row in range(len(LENGTHS)):
        pairs = list(zip(weights(log_rho(row)), token_losses(row, 0.2, None), strict=True))
        total += sum(weight * loss for weight, loss in pairs)
        rejected += sum(weight == 0 for weight, _ in pairs)
    out = ours(spec, device)
    assert float(out.loss) == pytest.approx(total, rel=1e-12)
    assert out.metrics[ops.LOSS_METRICS.index("rejected")] == rejected
    plain = sum(sum(token_losses(row, 0.2, None)) for row in range(len(LENGTHS)))
    assert float(out.loss) != pytest.approx(plain, rel=1e-6)  # the correction changes the loss


def test_mismatch_metrics_equal_their_formulas(device: str) -> None:
    spec = LossSpec.preset("dr_kernel")
    found = mismatch_metrics(ours(spec, device).metrics.cpu())
    rho = [math.exp(x) for x in LOG_RHO]
    assert found["sampling/kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in rho) / TOKENS)
    assert found["sampling/chi2"] == pytest.approx(sum(r**2 for r in rho) / TOKENS - 1)
    assert found["sampling/ess"] == pytest.approx(sum(rho) ** 2 / sum(r**2 for r in rho) / TOKENS)
    assert found["sampling/vetoed"] == pytest.approx(1 / 5)
    assert all(math.isnan(value) for value in mismatch_metrics(torch.zeros(len(ops.LOSS_METRICS))).values())
