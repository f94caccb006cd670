"""The ops again: short, obvious, in float64. What the tests compare with, and where to look for what an op does."""

from kernel_coder.reference.group_advantages import group_advantages
from kernel_coder.reference.policy_loss import policy_loss

__all__ = ["group_advantages", "policy_loss"]
