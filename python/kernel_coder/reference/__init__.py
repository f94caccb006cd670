"""The ops again: short, obvious, in float64. What the tests compare with, and where to look for what an op does."""

from kernel_coder.reference.group_advantages import group_advantages
from kernel_coder.reference.parse_response import parse_response
from kernel_coder.reference.policy_loss import policy_loss
from kernel_coder.reference.sequence_similarity import sequence_similarities, sequence_similarity

__all__ = ["group_advantages", "parse_response", "policy_loss", "sequence_similarities", "sequence_similarity"]
