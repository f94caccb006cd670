"""Reads the argument ``groups`` of the advantage ops."""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_coder.ops._inputs import Numbers, tensor_of


def group_order(groups: int | Numbers, members: int, kind: str, device: torch.device) -> tuple[Tensor | None, Tensor]:
    """Return ``order`` (None: unchanged) and ``offsets`` of the groups of ``members`` rewards or rollouts.

    ``kind`` names a member, for error messages. With ids the result has as many groups as members, the last ones empty,
    because counting the groups would mean waiting for a GPU.

    >>> group_order(2, 4, "reward", torch.device("cpu"))
    (None, tensor([0, 2, 4]))
    >>> group_order(torch.tensor([7, 3, 7]), 3, "reward", torch.device("cpu"))
    (tensor([1, 0, 2]), tensor([0, 1, 3, 3]))
    """
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups must be a group size of at least 1 or a tensor of group ids; got {groups}")
        if members % groups:
            raise ValueError(f"groups must divide the number of {kind}s; got groups of {groups} for {members} {kind}s")
        return None, torch.arange(0, members + 1, groups, device=device)
    if not isinstance(groups, Tensor):
        groups = tensor_of("groups", groups, torch.int64).to(device)
    if groups.dtype != torch.int64 or groups.shape != (members,):
        raise ValueError(
            f"groups must be int64 with one group id for each {kind}, shape [{members}]; "
            f"got {groups.dtype} with shape {list(groups.shape)}"
        )
    if groups.device != device:
        raise ValueError(f"groups must be on the device of rewards; got {groups.device} and {device}")
    ids, order = torch.sort(groups, stable=True)
    is_first = torch.ones_like(ids)
    is_first[1:] = ids[1:] != ids[:-1]
    offsets = torch.searchsorted(is_first.cumsum(0), torch.arange(1, members + 2, device=device))
    return order, offsets
