"""Reference for :func:`kernel_coder.ops.turn_advantages`."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from kernel_coder.reference.group_advantages import group_advantages


def turn_advantages(
    rewards: Tensor,
    groups: int | Tensor,
    *,
    gamma: float = 1.0,
    mode: str = "trloo",
    returns: str = "sum",
    cu_turns: Tensor | None = None,
    baseline: str = "turn",
    eps: float | None = None,
    std: str = "sample",
    singleton: str = "reward",
) -> Tensor:
    """Return the advantages in float64, one turn at a time."""
    if cu_turns is None:
        cu_turns = torch.arange(rewards.shape[0] + 1) * rewards.shape[1]
    bounds = cu_turns.tolist()
    rollouts = range(len(bounds) - 1)
    group_of = [r // groups for r in rollouts] if isinstance(groups, int) else groups.tolist()

    keys = [(0, 0)] * rewards.numel()
    for r in rollouts:
        for k, turn in enumerate(range(bounds[r], bounds[r + 1])):
            keys[turn] = (group_of[r], k if baseline == "turn" else 0)
    found = turn_returns(rewards.flatten(), cu_turns, gamma=gamma, mode=returns)

    names = sorted(set(keys))
    return group_advantages(
        found.to(rewards.device),
        torch.tensor([names.index(key) for key in keys], dtype=torch.int64, device=rewards.device),
        mode="rloo" if mode == "trloo" else mode,
        eps=eps,
        std=std,
        singleton=singleton,
    ).view(rewards.shape)


def turn_returns(rewards: Tensor, cu_turns: Tensor, *, gamma: float = 1.0, mode: str = "sum") -> Tensor:
    """Return the returns in float64, one turn at a time."""
    values = rewards.double().tolist()
    found = list(values)
    for begin, end in itertools.pairwise(cu_turns.tolist()):
        for k in range(begin, end):
            later = [gamma ** (j - k) * values[j] for j in range(k, end if gamma > 0 else k + 1)]
            if mode == "sum":
                found[k] = sum(later)
            elif mode == "max":
                found[k] = math.nan if any(map(math.isnan, later)) else max(later)
            elif mode == "last":
                found[k] = math.nan if math.isnan(values[k]) else gamma ** (end - 1 - k) * values[end - 1]
    return torch.tensor(found, dtype=torch.float64)
