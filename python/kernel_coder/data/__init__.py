"""Training data: the packaged pairs, and the builder that makes more (``python -m kernel_coder.data build``)."""
