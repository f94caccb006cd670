"""An endless, seeded generator of training tasks, each with a hand-style Triton solution.

A task is a composition of operations. Every operation knows how it is written in PyTorch and in Triton, so reference
and solution grow together, and what a person would fuse is one kernel.
"""

from kernel_coder.tasks.generator.families import FAMILIES, NAMED
from kernel_coder.tasks.generator.generate import LEVELS, VERSION, GeneratedTask, generate, generate_many, split_of
from kernel_coder.tasks.generator.split import HELDOUT_FAMILIES, SPLITS, Split

__all__ = [
    "FAMILIES",
    "HELDOUT_FAMILIES",
    "LEVELS",
    "NAMED",
    "SPLITS",
    "VERSION",
    "GeneratedTask",
    "Split",
    "generate",
    "generate_many",
    "split_of",
]
