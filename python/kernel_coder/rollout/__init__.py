"""Sampling answers: the record of one answer, the engine interface, and the engine that needs only transformers."""

from kernel_coder.rollout.engine import RolloutEngine, Sampling, completion_seed
from kernel_coder.rollout.types import Rollout, Turn

__all__ = ["Rollout", "RolloutEngine", "Sampling", "Turn", "completion_seed"]
