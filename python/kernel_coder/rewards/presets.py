"""Published combinations of rewards, by name."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_coder.rewards.errors import RewardError
from kernel_coder.rewards.reward_set import RewardPart

PRESETS: Mapping[str, tuple[RewardPart, ...]] = {
    # The first version of Kernel Coder: form plus similarity to the known solution, equally weighted.
    "kernel_coder": (RewardPart(name="format"), RewardPart(name="similarity")),
    # The others are about the judge's verdict. What the harness failed on has no total: "correct" is required. A
    # speedup or a share that was not measured, as in an interpreted run, adds nothing.
    #
    # Kevin (Baronio et al. 2025): 0.3 correct + speedup. Ours is the lower bound of the speedup, and capped.
    "kevin": (RewardPart(name="correct", weight=0.3, required=True), RewardPart(name="speedup")),
    # Dr. Kernel (2026, arXiv 2602.05885): 0.5 correct + 0.5 min(speedup, 3) + 0.5 share of its own kernels.
    "dr_kernel": (
        RewardPart(name="correct", weight=0.5, required=True),
        RewardPart(name="speedup", weight=0.5, params={"cap": 3.0}),
        RewardPart(name="kernel_share", weight=0.5),
    ),
    # KernelTune: stages for a model that cannot write kernels yet. First of all it has to compile, then to be correct;
    # a speedup is the last and smallest step. Weights are ours: the recipe states the order only.
    "kernel_tune": (
        RewardPart(name="compiles", weight=1.0, required=True),
        RewardPart(name="correct", weight=0.5, required=True),
        RewardPart(name="speedup", weight=0.1, params={"cap": 3.0}),
    ),
}


def reward_preset(name: str) -> tuple[RewardPart, ...]:
    """The parts of a preset, for :class:`RewardSet` or a configuration.

    >>> [(part.name, part.weight) for part in reward_preset("kevin")]
    [('correct', 0.3), ('speedup', 1.0)]
    """
    if name not in PRESETS:
        raise RewardError(f"unknown reward preset {name}; known are {', '.join(PRESETS)}")
    return PRESETS[name]
