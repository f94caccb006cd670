"""The ops: rewards' text measures, group advantages, log-probs and the policy loss, in C++ and CUDA.

Every op works on CPU tensors; those with a CUDA kernel take CUDA tensors too. Each has a slow, obvious twin of the same
name in :mod:`kernel_coder.reference`, which is its specification.
"""

from kernel_coder import _core
from kernel_coder.ops.group_advantages import group_advantages
from kernel_coder.ops.loss_spec import LOSS_METRICS, LossSpec
from kernel_coder.ops.parse_response import Response, parse_response
from kernel_coder.ops.policy_loss import LossOutput, policy_loss
from kernel_coder.ops.sequence_similarity import sequence_similarities, sequence_similarity

__all__ = [
    "LOSS_METRICS",
    "LossOutput",
    "LossSpec",
    "Response",
    "group_advantages",
    "parse_response",
    "policy_loss",
    "sequence_similarities",
    "sequence_similarity",
]

del _core
