"""Advantages of the turns of multi-turn rollouts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.ops._errors import checked
from kernel_coder.ops._groups import group_order
from kernel_coder.ops._inputs import Numbers, as_bounds
from kernel_coder.ops.group_advantages import DEFAULT_EPS, as_rewards


@checked
def turn_advantages(
    rewards: Numbers,
    groups: int | Numbers,
    *,
    gamma: float = 1.0,
    mode: str = "trloo",
    returns: str = "sum",
    cu_turns: Numbers | None = None,
    baseline: str = "turn",
    eps: float | None = None,
    std: str = "sample",
    singleton: str = "reward",
) -> Tensor:
    """The return of each turn against the returns of the turns that it is compared with.

    The return of turn ``k`` is ``G_k = r_k + gamma * G_(k+1)``: its reward and, discounted, those of the later turns of
    its rollout (or another one of :func:`turn_returns`, by ``returns``). With ``n`` scored returns to compare, mean
    ``mu`` and standard deviation ``s``:

    =========  =======================================================================================================
    mode       advantage of a turn with return ``G``
    =========  =======================================================================================================
    trloo      ``G`` minus the mean of the others ``= n / (n - 1) * (G - mu)``; Dr. Kernel, ``group_advantages``'s rloo
    grpo       ``(G - mu) / (s + eps)``; with ``gamma=0.4, baseline="group"`` Kevin's
    dr_grpo    ``G - mu``
    loo_std    ``(G - mu_others) / (s_others + eps)``, not divided where ``s_others`` is 0. Takes time ``n^2``
    maxrl      ``(G - mu) / mu``, 0 where ``mu <= 0``
    =========  =======================================================================================================

    ``baseline="turn"`` compares turns of the same number in the rollouts of a group (KernelGYM's
    ``compute_multi_turn_rloo_outcome_advantage``): turn 3 has seen the feedback to turns 1 and 2, turn 1 has not.
    ``baseline="group"`` compares all turns of all rollouts of a group, every turn a sample of its own (Kevin, Baronio
    et al. 2025). It is the same as ``group_advantages`` of the returns, with one group for each set of compared turns.

    Args:
        rewards: float32 or float64, CPU or CUDA. With ``cu_turns`` ``[num_turns]``, the turns of all rollouts one after
            another; without, ``[rollouts, turns]``, as many turns in each. NaN means unscored: its turn leaves the
            mean, the deviation and the count, and its advantage is 0. With ``gamma > 0`` that holds for the earlier
            turns of the rollout too, whose returns are unknown; with ``gamma=0`` they stay. So a rollout that ended
            early is not padded with NaN but packed. An infinite reward is refused on the CPU; on CUDA, where looking
            would mean waiting, the returns that it is part of leave the statistics and their advantages are NaN.
        groups: the number of rollouts in every group (they lie one after another), or int64 ``[rollouts]``, the group
            of each rollout, in any order.
        gamma: what the next turn's return counts for; finite and at least 0. KernelGYM: 1; Kevin: 0.4.
        mode: see the table.
        returns: ``"sum"``, ``"max"``, ``"last"`` or ``"per_turn"``.
        cu_turns: int64 ``[rollouts + 1]``, where each rollout's turns begin; from 0 to ``num_turns``, not decreasing
            (not checked on CUDA). A rollout may have no turns.
        baseline: ``"turn"`` or ``"group"``, see above.
        eps: keeps the division from blowing up. None: 1e-4; 1e-6 for ``loo_std``. With ``eps=0`` returns without
            spread give 0.
        std: ``"sample"`` divides by ``n - 1``, ``"population"`` by ``n``.
        singleton: what a scored turn without another to compare with gives: ``"reward"``, its return, as if ``mu`` were
            0 and nothing divided; or ``"zero"``. The first is KernelGYM's, unbiased, and the default here, where the
            one rollout that got to a late turn is common; for a group of one ``group_advantages`` has the other.

    Returns:
        A tensor like ``rewards``. Not differentiable. Returns and sums are taken in float64.

    Raises:
        ValueError: wrong shape, dtype, device, mode, discount or group size; the message says which.

    Two rollouts, of three turns and of two:

    >>> rewards = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.5])
    >>> advantages = turn_advantages(rewards, 2, cu_turns=torch.tensor([0, 3, 5]))
    >>> advantages
    tensor([ 0.5000,  0.5000,  1.0000, -0.5000, -0.5000])

    and as the losses take them, for turns of 1, 2, 1, 2 and 1 tokens:

    >>> advantages.repeat_interleave(torch.tensor([1, 2, 1, 2, 1]))
    tensor([ 0.5000,  0.5000,  0.5000,  1.0000, -0.5000, -0.5000, -0.5000])
    """
    rewards = as_rewards(rewards)
    cu_turns = as_bounds("cu_turns", cu_turns, rewards.device)
    if cu_turns is None:
        if rewards.dim() != 2:
            raise ValueError(
                f"rewards must be 2-D without cu_turns, [rollouts, turns]; got shape {list(rewards.shape)}"
            )
        rollouts = rewards.shape[0]
        cu_turns = torch.arange(rollouts + 1, device=rewards.device) * rewards.shape[1]
    else:
        if rewards.dim() != 1:
            raise ValueError(f"rewards must be 1-D with cu_turns; got shape {list(rewards.shape)}")
        if cu_turns.dim() != 1 or cu_turns.numel() == 0:
            raise ValueError(f"cu_turns must be 1-D and not empty; got shape {list(cu_turns.shape)}")
        rollouts = cu_turns.numel() - 1
    order, offsets = group_order(groups, rollouts, "rollout", rewards.device)
    if eps is None:
        eps = DEFAULT_EPS.get(mode, 1e-4)
    packed = rewards.detach().reshape(-1)
    if returns != "sum":
        packed, gamma = turn_returns(packed, cu_turns, gamma=gamma, mode=returns), 0.0
    advantages: Tensor = _C.turn_advantages(
        packed, cu_turns, order, offsets, gamma, mode, baseline, eps, std, singleton
    )
    return advantages.to(rewards.dtype).view(rewards.shape)


RETURNS = ("sum", "max", "last", "per_turn")


@checked
def turn_returns(rewards: Tensor, cu_turns: Tensor, *, gamma: float = 1.0, mode: str = "sum") -> Tensor:
    """The return of each turn: what its rollout earned with it and after it.

    ========  =================================================================
    mode      return of turn ``k`` of ``K`` with rewards ``r``
    ========  =================================================================
    sum       ``r_k + gamma r_(k+1) + gamma^2 r_(k+2) + ...``
    max       the largest of ``gamma^(j-k) r_j`` for ``j >= k``
    last      ``gamma^(K-k) r_K``
    per_turn  ``r_k``
    ========  =================================================================

    Kevin (Baronio et al. 2025) compares sum and max, with ``gamma`` 0.4 and 0.8.

    Args:
        rewards: float32 or float64 ``[num_turns]``, the turns of all rollouts one after another; NaN is unscored: every
            return that it is part of is NaN, and that of its own turn.
        cu_turns: int64 ``[rollouts + 1]``, where each rollout's turns begin.
        gamma: discount, finite and at least 0; with 0, ``sum`` and ``max`` are the reward itself.
        mode: see the table.

    Returns:
        float64 ``[num_turns]``.

    Raises:
        ValueError: wrong shape, dtype, mode or discount; the message says which.

    >>> rewards, cu_turns = torch.tensor([0.0, 1.0, 0.5, 0.25]), torch.tensor([0, 3, 4])
    >>> turn_returns(rewards, cu_turns, gamma=0.5)
    tensor([0.6250, 1.2500, 0.5000, 0.2500], dtype=torch.float64)
    >>> turn_returns(rewards, cu_turns, gamma=0.5, mode="max")
    tensor([0.5000, 1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    if rewards.dim() != 1 or not rewards.is_floating_point():
        raise ValueError(f"rewards must be 1-D and floating point; got {rewards.dtype} {list(rewards.shape)}")
    if cu_turns.dim() != 1 or cu_turns.numel() == 0 or cu_turns.dtype != torch.int64:
        raise ValueError(f"cu_turns must be int64, 1-D and not empty; got {cu_turns.dtype} {list(cu_turns.shape)}")
    if mode not in RETURNS:
        raise ValueError(f"returns must be one of {', '.join(RETURNS)}; got '{mode}'")
    if not 0 <= gamma < math.inf:
        raise ValueError(f"gamma must be finite and at least 0; got {gamma}")
    values, count = rewards.double(), rewards.numel()
    if mode == "per_turn" or count == 0 or (gamma == 0 and mode != "last"):
        return values
    place = torch.arange(count, device=rewards.device)
    last = cu_turns[torch.searchsorted(cu_turns, place, right=True)] - 1  # [num_turns]: the rollout's last turn
    if mode == "last":
        found = values[last] * gamma ** (last - place).double()
        return torch.where(values.isnan(), values, found)
    # After the step of width w an entry covers 2 w turns: it is joined with the entry that covers the next w.
    width = 1
    while width < count:
        joins = place + width <= last
        later = torch.where(joins, values.roll(-width) * gamma**width, 0.0)
        joined = values + later if mode == "sum" else torch.maximum(values, later)
        values = torch.where(joins, joined, values)
        width *= 2
    return values


@torch.library.register_fake("kernel_coder::turn_advantages")
def _(
    rewards: Tensor,
    cu_turns: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    gamma: float,
    mode: str,
    baseline: str,
    eps: float,
    std: str,
    singleton: str,
) -> Tensor:
    return rewards.new_empty(rewards.shape)
