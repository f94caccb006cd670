"""Answers from a vLLM server: ``rollout.engine: vllm``. See ``docs/rollouts.md``."""

from kernel_coder.rollout.vllm.config import VllmConfig

__all__ = ["VllmConfig"]
