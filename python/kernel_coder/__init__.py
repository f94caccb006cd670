"""Kernel Coder: train code language models to write GPU kernels.

>>> import kernel_coder as kc
>>> kc.ops.group_advantages(torch.tensor([0.0, 1.0]), 2, mode="dr_grpo")
tensor([-0.5000,  0.5000])
"""

from kernel_coder import ops

__version__ = "0.1.0"
__all__ = ["__version__", "ops"]
