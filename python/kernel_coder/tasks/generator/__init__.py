"""A seeded generator of training tasks without limit, each with a Triton solution in the style of handwritten code.

A task is a composition of operations. For every operation there is its text in PyTorch and in Triton, so reference and
solution are written together, and operations that a person would fuse form one kernel.
"""

from kernel_coder.tasks.generator.families import ALL_FAMILIES, FAMILIES
from kernel_coder.tasks.generator.generate import LEVELS, VERSION, GeneratedTask, generate, generate_many, split_of
from kernel_coder.tasks.generator.split import HELDOUT_FAMILIES, SPLITS, Split

__all__ = [
    "ALL_FAMILIES",
    "FAMILIES",
    "HELDOUT_FAMILIES",
    "LEVELS",
    "SPLITS",
    "VERSION",
    "GeneratedTask",
    "Split",
    "generate",
    "generate_many",
    "split_of",
]
