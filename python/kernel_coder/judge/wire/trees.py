"""Trees of lists, tuples and dicts with tensors as leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

Tree = TypeVar("Tree")
"""The type of a tree. A function that changes only its tensors returns the same type."""


def floating(tensor: Tensor) -> bool:
    """Return whether a tensor has real or complex floating-point numbers.

    Numbers of 8 bits do not count. They are a format for storing, in which torch computes nothing, so the judge treats
    them like packed integers: they stay as the task draws them.

    >>> import torch
    >>> [floating(torch.ones(2).to(dtype)) for dtype in (torch.bfloat16, torch.complex64, torch.float8_e4m3fn)]
    [True, True, False]
    """
    return is_real(tensor) or tensor.is_complex()


def is_real(tensor: Tensor) -> bool:
    """Return whether a tensor has real floating-point numbers of at least 16 bits."""
    return tensor.is_floating_point() and tensor.dtype.itemsize > 1


def tensors_of(value: Any) -> list[Tensor]:
    """Return all tensors of a tree, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in tensors_of(one)]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in tensors_of(one)]
    return []


def map_tensors(value: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """Return the same tree with `change` applied to each tensor."""
    changed: Any = value
    if isinstance(value, Tensor):
        changed = change(value)
    elif isinstance(value, dict):
        changed = {key: map_tensors(one, change) for key, one in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        changed = type(value)(*(map_tensors(one, change) for one in value))
    elif isinstance(value, list | tuple):
        changed = type(value)(map_tensors(one, change) for one in value)
    return changed
