"""Supervised training on known answers: ``python -m kernel_coder.sft --config recipe.yaml --section.field value``."""
