"""Group-relative advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_coder.ops._errors import checked
from kernel_coder.ops._groups import group_order
from kernel_coder.ops._inputs import Numbers, as_bounds, plain_tensor, tensor_of, without_autograd

#: Default values of ``eps`` of the modes that do not use 1e-4.
DEFAULT_EPS = {"loo_std": 1e-6, "reinforce_pp": 1e-8}


@checked
def group_advantages(
    rewards: Numbers,
    groups: int | Numbers,
    *,
    mode: str = "grpo",
    eps: float | None = None,
    std: str = "sample",
    singleton: str = "zero",
    lengths: Numbers | None = None,
) -> Tensor:
    """Compute the advantage of each reward by comparing it with the rewards of its group.

    With ``n`` scored rewards in the group, mean ``mu`` and standard deviation ``s``:

    ============  ====================================================================================================
    mode          advantage of reward ``r``
    ============  ====================================================================================================
    grpo          ``(r - mu) / (s + eps)``; Shao et al. 2024, eq. 3; TRL's eps is 1e-4, verl's 1e-6
    dr_grpo       ``r - mu``; Liu et al. 2025
    batch         ``(r - mu) / (s_batch + eps)``, ``s_batch`` over all scored rewards; TRL's ``scale_rewards="batch"``
    rloo          ``r`` minus the mean of the others ``= n / (n - 1) * (r - mu)``; Ahmadian et al. 2024
    loo_std       ``(r - mu_others) / (s_others + eps)``, not divided where ``s_others`` is 0 (so for ``n = 2``);
    .             NeMo-RL's default. Takes time ``n^2`` a group
    reinforce_pp  ``(d - m) / sqrt(v + eps)``, ``d = r - mu``, with mean ``m`` and variance ``v`` of ``d`` over all
    .             tokens of the batch; REINFORCE++ with baseline, Hu et al. 2025
    maxrl         ``(r - mu) / mu``, 0 where ``mu <= 0``; MaxRL
    ============  ====================================================================================================

    Args:
        rewards: float32 or float64 ``[num_rewards]``, CPU or CUDA, or a list of numbers (then the result is a float32
            tensor of the CPU). NaN, in a list also None, means unscored: such a reward does not count in the mean, the
            deviation and the size of its group, and its advantage is 0. An infinite reward is refused on the CPU. On
            CUDA, where a check would mean waiting, it is left out of its group's statistics and its own advantage is
            NaN.
        groups: the size of every group, if the rewards of a group are next to each other; or int64 ``[num_rewards]``,
            the group of each reward, in any order.
        mode: see the table.
        eps: prevents division by a number near 0. None: 1e-4; 1e-6 for ``loo_std``; 1e-8 for ``reinforce_pp``. With
            ``eps=0`` a group of equal rewards gives 0.
        std: ``"sample"`` divides by ``n - 1`` (TRL, verl), ``"population"`` by ``n``.
        singleton: the advantage in a group with one scored reward: ``"zero"`` (TRL), or ``"reward"``: the reward
            itself, as if ``mu`` were 0 (under ``batch`` and ``reinforce_pp`` divided like the others).
        lengths: int64 ``[num_rewards]``, the number of tokens of each answer, for ``reinforce_pp``. None: 1 for each.

    Returns:
        A tensor like ``rewards``. Not differentiable. Sums are computed in float64.

    Raises:
        ValueError: wrong shape, dtype, device, mode or group size; the message says which.

    >>> group_advantages(torch.tensor([0.0, 1.0, 2.0, 2.0]), 2, mode="rloo")
    tensor([-1.,  1.,  0.,  0.])
    >>> group_advantages(torch.tensor([1.0, float("nan"), 3.0]), 3, mode="dr_grpo")
    tensor([-1.,  0.,  1.])
    """
    rewards = as_rewards(rewards)
    order, offsets = group_order(groups, rewards.numel(), "reward", rewards.device)
    if eps is None:
        eps = DEFAULT_EPS.get(mode, 1e-4)
    counts = as_bounds("lengths", lengths, rewards.device)
    return without_autograd(_OP, rewards, order, offsets, counts, mode, eps, std, singleton)


def as_rewards(rewards: Numbers) -> Tensor:
    """Return rewards as a tensor without gradient; a list may hold None for an unscored reward."""
    if isinstance(rewards, Tensor):
        return plain_tensor("rewards", rewards).detach()
    return tensor_of("rewards", rewards, torch.float32)


_OP = torch.ops.kernel_coder.group_advantages.default


@torch.library.register_fake("kernel_coder::group_advantages")
def _(
    rewards: Tensor,
    order: Tensor | None,
    offsets: Tensor,
    lengths: Tensor | None,
    mode: str,
    eps: float,
    std: str,
    singleton: str,
) -> Tensor:
    return rewards.new_empty(rewards.shape)
