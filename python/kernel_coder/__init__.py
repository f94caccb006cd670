"""Kernel Coder: train code language models to write GPU kernels.

>>> import kernel_coder as kc
>>> kc.ops.group_advantages(torch.tensor([0.0, 1.0]), 2, mode="dr_grpo")
tensor([-0.5000,  0.5000])
"""

import importlib
import os
import sys
from types import ModuleType


def _module_that_runs(command: list[str]) -> str:
    """Return the module of a command line ``python [options] -m MODULE``; empty for any other one."""
    rest = iter(command[1:])
    for argument in rest:
        if argument.startswith("-m"):
            return argument[2:] or next(rest, "")
        if argument in ("-W", "-X"):
            next(rest, "")
        elif not argument.startswith("-") or argument.startswith("-c"):
            break
    return ""


_RUNS_A_COMMAND = _module_that_runs(sys.orig_argv).partition(".")[0] == "kernel_coder"
if _RUNS_A_COMMAND and not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    # `python -m` puts the current folder first. Candidates may lie there, under names such as torch.py; it is removed
    # before anything else is imported.
    del sys.path[0]

__version__ = "0.1.0"

#: Imported at first use, so that using an op does not import parquet and template libraries.
_LAZY = ("judge", "prompts", "reference", "rewards", "rollout", "sft", "tasks", "train")

try:
    from kernel_coder import ops
    from kernel_coder.ops import LossSpec
except ImportError:
    # ``kernel-coder env`` reports what is missing, so it must run even if the core cannot be loaded.
    is_env = os.path.basename(sys.argv[0]) == "kernel-coder" and sys.argv[1:2] == ["env"]
    if not is_env and _module_that_runs(sys.orig_argv) != "kernel_coder.env":
        raise

__all__ = ["LossSpec", "__version__", "ops", *_LAZY]


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return importlib.import_module(f"kernel_coder.{name}")
    raise AttributeError(f"module 'kernel_coder' has no attribute '{name}'")
