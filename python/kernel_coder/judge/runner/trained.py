"""The candidate's parameters whose gradients are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernel_coder.judge.runner.outputs import WrongStructure
from kernel_coder.judge.wire.messages import Status
from kernel_coder.judge.wire.module_calls import state_of

MAX_NAMES = 20
"""Upper limit of the names in a message."""


class MissingParameters(WrongStructure):
    """Raised if the candidate lacks a parameter whose gradient is compared."""

    status = Status.NO_GRADIENT


def trained_parameters(model: torch.nn.Module, wanted: Sequence[str], names: Mapping[str, str]) -> list[Tensor]:
    """Return the parameters whose gradients are compared, in the reference's order.

    Args:
        model: the candidate.
        wanted: the reference's names.
        names: the candidate's name for each of the reference's, as far as it has one.

    Raises:
        MissingParameters: one is missing, or requires no gradient, or ``parameters()`` does not yield it. An optimizer
            gets what that yields.

    >>> model = torch.nn.Linear(2, 1)
    >>> trained_parameters(model, ["gain"], {"gain": "weight"})[0] is model.weight
    True
    """
    shown = {id(one) for one in model.parameters() if one.requires_grad}
    own = dict(model.named_parameters(remove_duplicate=False))
    found = {name: own.get(names.get(name, "")) for name in wanted}
    if missing := [name for name, one in found.items() if one is None or id(one) not in shown]:
        raise MissingParameters(f"ModelNew has no parameter for the gradient of {', '.join(missing[:MAX_NAMES])}")
    return [one for one in found.values() if one is not None]


def step(model: torch.nn.Module, names: Mapping[str, str], state: Mapping[str, Tensor]) -> None:
    """Change the candidate's state in place, as an optimizer does.

    Args:
        model: the candidate.
        names: the candidate's name for each of the reference's.
        state: the new values, under the reference's names.
    """
    own = state_of(model)
    with torch.no_grad():
        for name, mine in names.items():
            own[mine].copy_(state[name])
