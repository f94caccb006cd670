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
    """Compute the advantage of each turn: its return compared with the returns of other turns.

    The return of turn ``k`` is ``G_k = r_k + gamma * G_(k+1)``: its reward and the discounted rewards of the later
    turns of its rollout (or another return of :func:`turn_returns`, chosen by ``returns``). With ``n`` scored returns
    to compare, mean ``mu`` and standard deviation ``s``:

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
    ``baseline="group"`` compares all turns of all rollouts of a group, each as a separate sample (Kevin, Baronio et al.
    2025). Both are the same as ``group_advantages`` of the returns, with one group for each set of compared turns.

    Args:
        rewards: float32 or float64, CPU or CUDA. With ``cu_turns``, ``[num_turns]``: the turns of all rollouts one
            after another. Without it, ``[rollouts, turns]``: all rollouts have equally many turns. NaN means unscored:
            such a turn does not count in the mean, the deviation and the number of samples, and its advantage is 0.
            With ``gamma > 0`` the same holds for the earlier turns of the rollout, because their returns are unknown.
            So do not pad a rollout that ended early with NaN; use ``cu_turns``. An infinite reward is refused on the
            CPU. On CUDA, where a check would mean waiting, returns that contain it are left out of the statistics and
            their advantages are NaN.
        groups: the number of rollouts in every group, if those of a group are next to each other; or int64
            ``[rollouts]``, the group of each rollout, in any order.
        gamma: weight of the next turn's return; finite and at least 0. KernelGYM: 1; Kevin: 0.4.
        mode: see the table.
        returns: ``"sum"``, ``"max"``, ``"last"`` or ``"per_turn"``.
        cu_turns: int64 ``[rollouts + 1]``, the index of each rollout's first turn; from 0 to ``num_turns``, not
            decreasing (not checked on CUDA). A rollout may have no turns.
        baseline: ``"turn"`` or ``"group"``, see above.
        eps: prevents division by a number near 0. None: 1e-4; 1e-6 for ``loo_std``. With ``eps=0`` returns that are all
            equal give 0.
        std: ``"sample"`` divides by ``n - 1``, ``"population"`` by ``n``.
        singleton: the advantage of a scored turn that has no other turn to be compared with: ``"reward"``, its return,
            as if ``mu`` were 0 and nothing divided; or ``"zero"``. ``"reward"`` is KernelGYM's choice, unbiased, and
            the default here, because often only one rollout reaches a late turn; the default of ``group_advantages`` is
            ``"zero"``.

    Returns:
        A tensor like ``rewards``. Not differentiable. Returns and sums are computed in float64.

    Raises:
        ValueError: wrong shape, dtype, device, mode, discount or group size; the message says which.

    Two rollouts, of three turns and of two:

    >>> rewards = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.5])
    >>> advantages = turn_advantages(rewards, 2, cu_turns=torch.tensor([0, 3, 5]))
    >>> advantages
    tensor([ 0.5000,  0.5000,  1.0000, -0.5000, -0.5000])

    and repeated for each token, as the losses need them, for turns of 1, 2, 1, 2 and 1 tokens:

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
    """Compute the return of each turn from its reward and the rewards of later turns of its rollout.

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
        rewards: float32 or float64 ``[num_turns]``, the turns of all rollouts one after another. NaN means unscored:
            the return of this turn, and every return that contains its reward, is NaN.
        cu_turns: int64 ``[rollouts + 1]``, the index of each rollout's first turn.
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
