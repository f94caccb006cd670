"""Samples answers: engines that generate them, and conversations of answers, verdicts and further answers."""

from kernel_coder.rollout.conversations import Conversation, FollowUp, Next, Opening, converse
from kernel_coder.rollout.engine import RolloutEngine, Sampling, completion_seed
from kernel_coder.rollout.types import Rollout, Turn, answer_to

__all__ = [
    "Conversation",
    "FollowUp",
    "Next",
    "Opening",
    "Rollout",
    "RolloutEngine",
    "Sampling",
    "Turn",
    "answer_to",
    "completion_seed",
    "converse",
]
