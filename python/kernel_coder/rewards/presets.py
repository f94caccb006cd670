"""Published combinations of rewards, by name."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_coder.rewards.errors import RewardError
from kernel_coder.rewards.reward_set import RewardPart

PRESETS: Mapping[str, tuple[RewardPart, ...]] = {
    # The first version of Kernel Coder: form and similarity to the known solution, with equal weights.
    "kernel_coder": (RewardPart(name="format"), RewardPart(name="similarity")),
    # The others score the judge's verdict. After harness_failed there is no total, because "correct" is required. A
    # speedup or kernel share that was not measured, as in the interpreter, adds nothing.
    #
    # Kevin (Baronio et al. 2025): 0.3 correct + speedup. Here the speedup is its lower bound, and capped.
    "kevin": (RewardPart(name="correct", weight=0.3, required=True), RewardPart(name="speedup")),
    # Dr. Kernel (2026, arXiv 2602.05885): 0.5 correct + 0.5 min(speedup, 3) + 0.5 kernel share.
    "dr_kernel": (
        RewardPart(name="correct", weight=0.5, required=True),
        RewardPart(name="speedup", weight=0.5, params={"cap": 3.0}),
        RewardPart(name="kernel_share", weight=0.5),
    ),
    # KernelTune: for a model that cannot write kernels yet. Compiling counts most, then correctness, then speedup. The
    # recipe states only this order; the weights are ours.
    "kernel_tune": (
        RewardPart(name="compiles", weight=1.0, required=True),
        RewardPart(name="correct", weight=0.5, required=True),
        RewardPart(name="speedup", weight=0.1, params={"cap": 3.0}),
    ),
}


def reward_preset(name: str) -> tuple[RewardPart, ...]:
    """Return the parts of a preset, for :class:`RewardSet` or a config.

    >>> [(part.name, part.weight) for part in reward_preset("kevin")]
    [('correct', 0.3), ('speedup', 1.0)]
    """
    if name not in PRESETS:
        raise RewardError(f"unknown reward preset {name}; known are {', '.join(PRESETS)}")
    return PRESETS[name]
