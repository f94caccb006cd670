"""Short reference versions of the ops in float64, for reading and for tests."""

from kernel_coder.reference.compare import compare
from kernel_coder.reference.group_advantages import group_advantages
from kernel_coder.reference.grpo_loss import grpo_loss
from kernel_coder.reference.linear_grpo_loss import linear_grpo_loss
from kernel_coder.reference.linear_token_logprobs import linear_token_logprobs
from kernel_coder.reference.parse_response import parse_response
from kernel_coder.reference.policy_loss import policy_loss
from kernel_coder.reference.sequence_similarity import sequence_similarities, sequence_similarity
from kernel_coder.reference.token_logprobs import token_logprobs
from kernel_coder.reference.turn_advantages import turn_advantages, turn_returns

__all__ = [
    "compare",
    "group_advantages",
    "grpo_loss",
    "linear_grpo_loss",
    "linear_token_logprobs",
    "parse_response",
    "policy_loss",
    "sequence_similarities",
    "sequence_similarity",
    "token_logprobs",
    "turn_advantages",
    "turn_returns",
]
