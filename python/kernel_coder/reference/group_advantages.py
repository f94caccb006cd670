"""Reference for :func:`kernel_coder.ops.group_advantages`."""

from __future__ import annotations

import torch
from torch import Tensor


def group_advantages(
    rewards: Tensor,
    groups: int | Tensor,
    *,
    mode: str = "grpo",
    eps: float = 1e-4,
    std: str = "sample",
    singleton: str = "zero",
) -> Tensor:
    """The advantages in float64, one group at a time."""
    if isinstance(groups, int):
        groups = torch.arange(rewards.numel(), device=rewards.device) // groups
    out = torch.zeros_like(rewards, dtype=torch.float64)
    for group in groups.unique():
        members = (groups == group) & ~rewards.isnan()
        r = rewards[members].double()
        n = r.numel()
        if n == 1:
            out[members] = r if singleton == "reward" else torch.zeros_like(r)
            continue
        if n == 0:
            continue
        centred = r - r.mean()
        if mode == "grpo":
            out[members] = centred / (r.std(correction=1 if std == "sample" else 0) + eps)
        elif mode == "dr_grpo":
            out[members] = centred
        elif mode == "rloo":
            out[members] = r - (r.sum() - r) / (n - 1)
    return out
