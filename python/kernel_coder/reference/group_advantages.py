"""Reference for :func:`kernel_coder.ops.group_advantages`."""

from __future__ import annotations

import torch
from torch import Tensor


def group_advantages(
    rewards: Tensor,
    groups: int | Tensor,
    *,
    mode: str = "grpo",
    eps: float | None = None,
    std: str = "sample",
    singleton: str = "zero",
    lengths: Tensor | None = None,
) -> Tensor:
    """Return the advantages in float64, one group at a time."""
    if eps is None:
        eps = {"loo_std": 1e-6, "reinforce_pp": 1e-8}.get(mode, 1e-4)
    if isinstance(groups, int):
        groups = torch.arange(rewards.numel(), device=rewards.device) // groups
    correction = 1 if std == "sample" else 0
    scored = ~rewards.isnan()
    out = torch.zeros_like(rewards, dtype=torch.float64)
    whitened = torch.zeros_like(scored)  # takes part in the whitening of reinforce_pp
    batch_std = _std(rewards[scored].double(), correction)
    for group in groups.unique():
        members = (groups == group) & scored
        r = rewards[members].double()
        n = r.numel()
        if n == 0 or (n == 1 and singleton == "zero"):
            continue
        whitened |= members
        centred = r - r.mean() if n > 1 else r
        if mode == "batch":
            out[members] = centred / (batch_std + eps)
        elif n == 1 or mode in ("dr_grpo", "reinforce_pp"):
            out[members] = centred
        elif mode == "grpo":
            out[members] = centred / (_std(r, correction) + eps)
        elif mode == "rloo":
            out[members] = r - (r.sum() - r) / (n - 1)
        elif mode == "loo_std":
            for i in members.nonzero().flatten():
                others = rewards[members & (torch.arange(len(rewards), device=rewards.device) != i)].double()
                deviation = _std(others, correction)
                out[i] = (rewards[i].double() - others.mean()) / (deviation + eps if deviation > 0 else 1)
        elif mode == "maxrl":
            out[members] = centred / r.mean() if r.mean() > 0 else torch.zeros_like(r)
    if mode == "reinforce_pp":
        counts = torch.ones_like(whitened, dtype=torch.int64) if lengths is None else lengths
        tokens = out[whitened].repeat_interleave(counts[whitened])
        mean = tokens.mean() if len(tokens) else tokens.sum()
        out[whitened] = (out[whitened] - mean) / (_std(tokens, correction) ** 2 + eps).sqrt()
    return out


def _std(values: Tensor, correction: int) -> Tensor:
    return values.std(correction=correction) if len(values) > correction else values.new_zeros(())
