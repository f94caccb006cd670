"""The optimiser and its learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder.run.config import AdamConfig
from kernel_coder.run.errors import UsageError


def make_optimizer(parameters: Iterable[nn.Parameter], config: AdamConfig) -> torch.optim.Optimizer:
    """Return AdamW over all the parameters in one group, in its fused form."""
    return torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def make_schedule(config: AdamConfig, updates: int) -> Callable[[int], float]:
    """Return the learning rate as a function of the update's number, for a run of that many updates.

    It has no state, so a resumed run needs only the number of the next update.

    Raises:
        UsageError: transformers has no schedule of that name, or not with these arguments.

    >>> schedule = make_schedule(AdamConfig(learning_rate=1.0, warmup_steps=2), updates=4)
    >>> [schedule(update) for update in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    from transformers import get_scheduler

    probe = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=config.learning_rate)
    try:
        made: Any = get_scheduler(
            config.lr_scheduler_type,
            probe,
            num_warmup_steps=config.warmup_steps,
            num_training_steps=updates,
            scheduler_specific_kwargs=config.lr_scheduler_kwargs or None,
        )
        factor = made.lr_lambdas[0]
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"optim.lr_scheduler_type {config.lr_scheduler_type} cannot be used: {error}") from None
    return lambda update: config.learning_rate * factor(update)


def named_tensors(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return the optimiser's tensors as they are, named ``<parameter>.<key>``, given the names of the parameters."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    return {
        f"{names[parameter]}.{key}": value
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    }


def settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each parameter group."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def set_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Gives each parameter group its saved settings."""
    for group, numbers in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: tuple(value) if isinstance(value, list) else value for key, value in numbers.items()})
