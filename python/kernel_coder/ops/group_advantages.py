"""Group-relative advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_coder import _C
from kernel_coder.ops._errors import checked


@checked
def group_advantages(
    rewards: Tensor,
    groups: int | Tensor,
    *,
    mode: str = "grpo",
    eps: float = 1e-4,
    std: str = "sample",
    singleton: str = "zero",
) -> Tensor:
    """Each reward against the other rewards of its group.

    With ``n`` scored rewards in the group, mean ``mu`` and standard deviation ``s``:

    ==========  ==========================================================================================
    mode        advantage of reward ``r``
    ==========  ==========================================================================================
    grpo        ``(r - mu) / (s + eps)``; Shao et al. 2024, eq. 3; TRL's eps is 1e-4, verl's 1e-6
    dr_grpo     ``r - mu``; Liu et al. 2025
    rloo        ``r`` minus the mean of the others ``= n / (n - 1) * (r - mu)``; Ahmadian et al. 2024
    ==========  ==========================================================================================

    Args:
        rewards: float32 or float64 ``[num_rewards]``, CPU or CUDA. NaN means unscored: it leaves the mean, the
            deviation and the count of its group, and its advantage is 0.
        groups: the size of every group (they lie one after another), or int64 ``[num_rewards]``, the group of each
            reward, in any order.
        mode: see the table.
        eps: added to the standard deviation.
        std: ``"sample"`` divides by ``n - 1`` (TRL, verl), ``"population"`` by ``n``.
        singleton: what a group with one scored reward gives: ``"zero"`` (TRL) or the ``"reward"`` itself (no baseline).

    Returns:
        A tensor like ``rewards``. Not differentiable. Sums are taken in float64.

    Raises:
        ValueError: wrong shape, dtype, device, mode or group size; the message says which.

    >>> group_advantages(torch.tensor([0.0, 1.0, 2.0, 2.0]), 2, mode="rloo")
    tensor([-1.,  1.,  0.,  0.])
    """
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups must be a group size of at least 1 or a tensor of group ids; got {groups}")
        if rewards.numel() % groups:
            raise ValueError(
                f"groups must divide the number of rewards; got groups of {groups} for {rewards.numel()} rewards"
            )
        order = None
        offsets = torch.arange(0, rewards.numel() + 1, groups, device=rewards.device)
    else:
        if groups.dtype != torch.int64 or groups.shape != rewards.shape:
            raise ValueError(
                f"groups must be int64 with one group id for each reward, shape {list(rewards.shape)}; "
                f"got {groups.dtype} with shape {list(groups.shape)}"
            )
        ids, order = torch.sort(groups, stable=True)
        sizes = torch.unique_consecutive(ids, return_counts=True)[1]
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return _C.group_advantages(rewards.detach(), order, offsets, mode, eps, std, singleton)


@torch.library.register_fake("kernel_coder::group_advantages")
def _(
    rewards: Tensor, order: Tensor | None, offsets: Tensor, mode: str, eps: float, std: str, singleton: str
) -> Tensor:
    return rewards.new_empty(rewards.shape)
