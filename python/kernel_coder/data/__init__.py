"""Training data: the packaged pairs, and ``kernel-coder data``, which makes more."""
