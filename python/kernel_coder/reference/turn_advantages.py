"""Reference for :func:`kernel_coder.ops.turn_advantages`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_coder.reference.group_advantages import group_advantages


def turn_advantages(
    rewards: Tensor,
    groups: int | Tensor,
    *,
    gamma: float = 1.0,
    mode: str = "trloo",
    cu_turns: Tensor | None = None,
    baseline: str = "turn",
    eps: float | None = None,
    std: str = "sample",
    singleton: str = "reward",
) -> Tensor:
    """The advantages in float64, one turn at a time."""
    if cu_turns is None:
        cu_turns = torch.arange(rewards.shape[0] + 1) * rewards.shape[1]
    bounds = cu_turns.tolist()
    rollouts = range(len(bounds) - 1)
    group_of = [r // groups for r in rollouts] if isinstance(groups, int) else groups.tolist()

    returns = rewards.double().flatten().tolist()
    keys = [(0, 0)] * len(returns)
    for r in rollouts:
        turns = range(bounds[r], bounds[r + 1])
        for k, turn in enumerate(turns):
            keys[turn] = (group_of[r], k if baseline == "turn" else 0)
        for turn in reversed(turns[:-1]):
            if gamma > 0:
                returns[turn] += gamma * returns[turn + 1]

    names = sorted(set(keys))
    return group_advantages(
        torch.tensor(returns, dtype=torch.float64, device=rewards.device),
        torch.tensor([names.index(key) for key in keys], dtype=torch.int64, device=rewards.device),
        mode="rloo" if mode == "trloo" else mode,
        eps=eps,
        std=std,
        singleton=singleton,
    ).view(rewards.shape)
