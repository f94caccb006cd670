"""Removes what a kernel computed, to see whether the candidate's outputs depend on it.

There are three ways: overwrite a result with NaN, with random numbers, or with the kernel's inputs.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.runner.contents import Fingerprint, bytes_of, contains, fingerprint, storage_of

DISTANCE_ELEMENTS = 4096
"""Approximate number of elements of two tensors that are compared to find how near they are."""


def spoil(tensor: Tensor, is_finite: bool = False) -> Tensor:
    """Give a tensor other values, in place where possible, and return it.

    Floats become NaN, or normally distributed numbers if they must be finite. Every bit of an integer is flipped.

    >>> spoil(torch.tensor([1.0, 2.0])), spoil(torch.tensor([5, 6]))
    (tensor([nan, nan]), tensor([-6, -7]))
    """
    if tensor.numel() == 0:
        return tensor
    values = tensor.detach()
    with contextlib.suppress(RuntimeError):  # torch does not write where several elements share memory
        if values.is_floating_point() or values.is_complex():
            values.normal_() if is_finite else values.fill_(float("nan"))
        elif values.dtype == torch.bool:
            values.logical_not_()
        else:
            values.bitwise_not_()
        return tensor
    return spoil(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), is_finite)


def spoil_call(tensors: Mapping[str, Tensor], before: Mapping[str, Fingerprint], result: Any, is_finite: bool) -> Any:
    """Spoil everything that a function changed or returned. Return the spoiled result.

    Args:
        tensors: the function's tensor arguments.
        before: their fingerprints before the call.
        result: the function's result: tensors, numbers, and containers of them.
        is_finite: write random numbers instead of NaN.
    """
    untouched = set()
    for name, one in tensors.items():
        if fingerprint(one) != before[name]:
            spoil(one, is_finite)
        else:
            untouched.add(storage_of(one))

    def spoiled(value: Any) -> Any:
        if isinstance(value, Tensor):  # an argument that is returned as it was stays as it was
            return spoil(torch.empty_like(value) if storage_of(value) in untouched else value, is_finite)
        if isinstance(value, float):
            return value + random.uniform(1.0, 2.0) if is_finite else float("nan")
        if isinstance(value, int) and not isinstance(value, bool):
            return ~value
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(spoiled(one) for one in value)
        if isinstance(value, dict):
            return {key: spoiled(one) for key, one in value.items()}
        return value

    return spoiled(result)


def undo(given: list[tuple[Tensor, Tensor]], made: list[Tensor]) -> bool:
    """Overwrite what a launch wrote with its inputs.

    A written tensor gets the values of the nearest unchanged input that has as many elements and, like it,
    floating-point numbers or integers. Without such an input, it gets its own earlier content.

    Args:
        given: the launch's tensor arguments, each with a copy of its content before the launch.
        made: tensors that the launch returned.

    Returns:
        Whether anything was overwritten.
    """
    changed = [one for one, before in given if not torch.equal(bytes_of(one), bytes_of(before))]
    sources = [before for one, before in given if not contains(changed, one)]
    is_undone = False
    for one in [*changed, *made]:
        own = [before for mine, before in given if mine is one]
        alike = [source for source in sources if source.is_floating_point() == one.is_floating_point()]
        found = [source for source in alike if source.numel() == one.numel() > 1] or own
        if found and not one.is_complex():
            with contextlib.suppress(RuntimeError):  # torch does not write where several elements share memory
                one.detach().copy_(min(found, key=lambda source: _distance(one, source)).reshape(one.shape))
                is_undone = True
    return is_undone


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the mean absolute difference of some of their elements; infinite if it is NaN."""
    step = max(1, one.numel() // DISTANCE_ELEMENTS)
    mine, others = (some.detach().reshape(-1)[::step].double() for some in (one, other))
    found = float((mine - others).abs().mean())
    return found if found == found else float("inf")
