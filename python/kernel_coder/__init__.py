"""Kernel Coder: train code language models to write GPU kernels.

>>> import kernel_coder as kc
>>> kc.ops.group_advantages(torch.tensor([0.0, 1.0]), 2, mode="dr_grpo")
tensor([-0.5000,  0.5000])
"""

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

#: Imported at first use, so that using an op does not import parquet and template libraries.
_LAZY = ("judge", "prompts", "reference", "rewards", "rollout", "sft", "tasks", "train")

try:
    from kernel_coder import ops
    from kernel_coder.ops import LossSpec
except ImportError:
    # ``kernel_coder.env`` reports what is missing, so it must run even if the core cannot be loaded.
    if sys.orig_argv[1:3] != ["-m", "kernel_coder.env"]:
        raise

__all__ = ["LossSpec", "__version__", "ops", *_LAZY]


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return importlib.import_module(f"kernel_coder.{name}")
    raise AttributeError(f"module 'kernel_coder' has no attribute '{name}'")
