"""How good a model is at writing kernels: answers sampled, judged and counted; ``python -m kernel_coder.evaluate``."""
