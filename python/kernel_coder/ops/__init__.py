"""The ops: rewards' text measures, advantages, log-probs, the policy loss and comparison, in C++ and CUDA.

Every op works on CPU tensors; those with a CUDA kernel take CUDA tensors too. Each has a slow and simple counterpart of
the same name in :mod:`kernel_coder.reference`, which is its specification.
"""

from kernel_coder import _core
from kernel_coder.ops.compare import Comparison, ComparisonResult, compare, read_comparisons
from kernel_coder.ops.group_advantages import group_advantages
from kernel_coder.ops.grpo_loss import grpo_loss
from kernel_coder.ops.linear_grpo_loss import linear_grpo_loss
from kernel_coder.ops.linear_token_logprobs import linear_token_logprobs
from kernel_coder.ops.loss_spec import LOSS_METRICS, LossSpec
from kernel_coder.ops.parse_response import Response, parse_response
from kernel_coder.ops.policy_loss import LossOutput, policy_loss
from kernel_coder.ops.sequence_similarity import sequence_similarities, sequence_similarity
from kernel_coder.ops.token_logprobs import TokenLogprobs, token_logprobs
from kernel_coder.ops.turn_advantages import turn_advantages, turn_returns

__all__ = [
    "LOSS_METRICS",
    "Comparison",
    "ComparisonResult",
    "LossOutput",
    "LossSpec",
    "Response",
    "TokenLogprobs",
    "compare",
    "group_advantages",
    "grpo_loss",
    "linear_grpo_loss",
    "linear_token_logprobs",
    "parse_response",
    "policy_loss",
    "read_comparisons",
    "sequence_similarities",
    "sequence_similarity",
    "token_logprobs",
    "turn_advantages",
    "turn_returns",
]

del _core
