"""Whether a task's outputs are proportional to a power of the scale of its inputs.

If they are not, an output may depend on a difference of large numbers, and large inputs need a wider tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernel_coder.judge.examiner import tolerance
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.examiner.widened import doubled
from kernel_coder.judge.wire.trees import floating, map_tensors, tensors_of

SCALE_FACTOR = 1e-4
"""Factor by which the inputs are multiplied."""


def scales_with_inputs(reference: Reference) -> bool:
    """Return whether multiplying the inputs by :data:`SCALE_FACTOR` multiplies each output by some number.

    An output that is a single number must be multiplied by the same number when the inputs shrink again. A matrix
    product and a mean squared error have this property, tanh and cross entropy have not. False if the reference cannot
    compute in float64.

    Raises:
        torch.OutOfMemoryError: the outputs do not fit into memory.
    """
    try:
        return _scales(reference)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a reference that works only in its own dtype
        return False


def _scales(reference: Reference) -> bool:
    own, places = reference.own_inputs(), list[Tensor]()

    def some_outputs(factor: float) -> list[Tensor]:
        inputs = map_tensors(own, lambda one: doubled(one) * factor if floating(one) else one.clone())
        outputs = [one for one in tensors_of(reference.outputs(reference.exact, inputs, [])) if floating(one)]
        places.extend(() if places else map(tolerance.places_of, outputs))
        return [one.reshape(-1)[at] for one, at in zip(outputs, places, strict=True)]

    plain, shrunk = some_outputs(1.0), some_outputs(SCALE_FACTOR)
    if not all(_is_multiple(a, b) for a, b in zip(plain, shrunk, strict=True)):
        return False
    single = [place for place, one in enumerate(plain) if one.numel() == 1]
    twice = some_outputs(SCALE_FACTOR**2) if single else []
    return all(_is_power(plain[place], shrunk[place], twice[place]) for place in single)


def _is_multiple(one: Tensor, other: Tensor) -> bool:
    """Return whether the second vector is a multiple of the first one."""
    factor = (one.conj() * other).sum() / (one.conj() * one).sum()
    return bool((other - factor * one).norm() <= 1e-3 * other.norm())


def _is_power(one: Tensor, shrunk: Tensor, shrunk_twice: Tensor) -> bool:
    """Return whether a number changes by the same factor both times. Once says nothing about a single number, which is
    a multiple of any other."""
    return bool((shrunk**2 - one * shrunk_twice).abs() <= 1e-3 * (shrunk**2).abs())
