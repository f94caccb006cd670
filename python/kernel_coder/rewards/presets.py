"""Published combinations of rewards, by name."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_coder.rewards.errors import RewardError
from kernel_coder.rewards.reward_set import RewardPart

PRESETS: Mapping[str, tuple[RewardPart, ...]] = {
    # The first version of Kernel Coder: form plus similarity to the known solution, equally weighted.
    "kernel_coder": (RewardPart(name="format"), RewardPart(name="similarity")),
}


def reward_preset(name: str) -> tuple[RewardPart, ...]:
    """The parts of a preset, for :class:`RewardSet` or a configuration.

    >>> [part.name for part in reward_preset("kernel_coder")]
    ['format', 'similarity']
    """
    if name not in PRESETS:
        raise RewardError(f"unknown reward preset {name}; known are {', '.join(PRESETS)}")
    return PRESETS[name]
