"""Reinforcement learning on rewards: ``kernel-coder train --config recipe.yaml --section.field value``."""
