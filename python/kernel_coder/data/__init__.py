"""Training data: the packaged pairs, and what makes more: ``python -m kernel_coder.data build`` and ``distill``."""
