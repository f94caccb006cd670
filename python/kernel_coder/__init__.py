"""Kernel Coder: train code language models to write GPU kernels."""
