"""Kernel Coder: train code language models to write GPU kernels.

>>> import kernel_coder as kc
>>> kc.ops.group_advantages(torch.tensor([0.0, 1.0]), 2, mode="dr_grpo")
tensor([-0.5000,  0.5000])
"""

import sys

__version__ = "0.1.0"

try:
    from kernel_coder import ops
    from kernel_coder.ops import LossSpec
except ImportError:
    # The report of what is missing has to run above all where something is missing.
    if sys.orig_argv[1:3] != ["-m", "kernel_coder.env"]:
        raise

__all__ = ["LossSpec", "__version__", "ops"]
