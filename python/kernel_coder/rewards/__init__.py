"""Reward functions with TRL's signature, and their weighted sums.

A reward function takes the prompts, the completions (texts or conversations) and columns by keyword, with one value for
each completion. It returns a number for each completion, or None where it does not apply. These functions work in TRL's
trainers, and TRL's functions work in :class:`RewardSet`. A training loop passes the columns ``task``, ``solution``,
``reference``, ``completion_ids`` and ``finish_reason``, and the number ``step``; rewards on verdicts take ``verdict``.
"""

from kernel_coder.rewards.completions import completion_text
from kernel_coder.rewards.errors import Failure, RewardError
from kernel_coder.rewards.format import format_reward
from kernel_coder.rewards.presets import PRESETS, reward_preset
from kernel_coder.rewards.registry import Reward, load_reward, register_reward, reward_names
from kernel_coder.rewards.reward_set import RewardPart, RewardSet, RewardTable
from kernel_coder.rewards.schedule import Schedule
from kernel_coder.rewards.similarity import similarity_reward
from kernel_coder.rewards.techniques import techniques_reward
from kernel_coder.rewards.verdicts import (
    compiles_reward,
    correct_reward,
    general_reward,
    kernel_share_reward,
    memory_reward,
    roofline_reward,
    speedup_reward,
)

__all__ = [
    "PRESETS",
    "Failure",
    "Reward",
    "RewardError",
    "RewardPart",
    "RewardSet",
    "RewardTable",
    "Schedule",
    "compiles_reward",
    "completion_text",
    "correct_reward",
    "format_reward",
    "general_reward",
    "kernel_share_reward",
    "load_reward",
    "memory_reward",
    "register_reward",
    "reward_names",
    "reward_preset",
    "roofline_reward",
    "similarity_reward",
    "speedup_reward",
    "techniques_reward",
]
