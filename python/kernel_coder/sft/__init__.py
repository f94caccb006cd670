"""Supervised warm-up: ``python -m kernel_coder.sft --config recipe.yaml --section.field value``."""
