"""Reinforcement learning on rewards: ``python -m kernel_coder.train --config recipe.yaml --section.field value``."""
