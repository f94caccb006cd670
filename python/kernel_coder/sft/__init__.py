"""Supervised training on known answers: ``kernel-coder sft --config recipe.yaml --section.field value``."""
