"""Tests whether an input or a parameter changes the result so little that a candidate could leave it out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_coder import ops
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.examiner.refusals import Refused
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.wire.module_calls import state_of
from kernel_coder.judge.wire.trees import floating, is_real, map_tensors, tensors_of
from kernel_coder.ops.compare import read_comparisons

MAX_PARAMETERS, MAX_ELEMENTS = 32, 1 << 20
"""Parameters of a task, and elements of all of them, up to which each is tested. Every test is a call."""

FACTOR, TIMES = 30.0, 4
"""Factor on a parameter that changes the result too little, and how often it is applied at most."""

NO_EFFECT = 1e-12
"""Relative change in float64 that counts as none: the bias before a batch norm changes only the rounding."""


def weigh(reference: Reference, sample: Sample) -> None:
    """Scale up every parameter that changes the result too little, by setting ``reference.scales``.

    Args:
        reference: the task's reference.
        sample: a sample of the task's own inputs.

    Raises:
        Refused: an input changes the result, but never by more than the tolerance.
    """
    for index, value in enumerate(sample.tensors):
        if floating(value) and _is_negligible(_with_another_input(reference, sample, index), sample):
            raise Refused(f"input {index} changes nothing within the tolerance, so a candidate could leave it out")
    values = dict(reference.exact.named_parameters())
    if len(values) > MAX_PARAMETERS or sum(one.numel() for one in values.values()) > MAX_ELEMENTS:
        return
    modules = state_of(reference.exact)
    for name in values:
        kept = modules[name].detach().clone()
        try:
            for power in range(TIMES + 1):
                _move(modules[name], kept * FACTOR**power, reference.draws.rng)
                if not _is_negligible(_outputs(reference, sample), sample):
                    if power:
                        reference.scales[name] = FACTOR**power
                    break
        finally:
            with torch.no_grad():
                modules[name].copy_(kept)
    if reference.scales:
        reference.draw_state()


def _move(parameter: Tensor, to: Tensor, rng: torch.Generator) -> None:
    noise = torch.rand(to.shape, generator=rng, device=to.device, dtype=torch.float64)
    with torch.no_grad():
        parameter.copy_(to * (0.25 + 1.5 * noise))


def _outputs(reference: Reference, sample: Sample) -> list[Tensor]:
    inputs = map_tensors(sample.inputs, lambda one: one.double() if is_real(one) else one.clone())
    return tensors_of(reference.outputs(reference.exact, inputs, []))


def _with_another_input(reference: Reference, sample: Sample, index: int) -> list[Tensor]:
    """Return the oracle's outputs for inputs of which one is replaced by another draw."""
    another = tensors_of(reference.own_inputs())
    inputs = iter([another[index] if place == index else one for place, one in enumerate(sample.tensors)])
    mixed = map_tensors(sample.inputs, lambda _: next(inputs))
    doubled = map_tensors(mixed, lambda one: one.double() if is_real(one) else one.clone())
    return tensors_of(reference.outputs(reference.exact, doubled, []))


def _is_negligible(found: Sequence[Tensor], sample: Sample) -> bool:
    """Return whether outputs differ from the sample's, but by no more than its tolerances."""
    expected = sample.expected[: len(found)]
    if any(a.shape != b.shape or not floating(b) for a, b in zip(found, expected, strict=True)):
        return False
    results = read_comparisons(
        [
            ops.compare(a, b, rtol=allowed.rtol, atol=allowed.atol)
            for a, b, allowed in zip(found, expected, sample.tolerances, strict=False)
        ]
    )
    passes = all(allowed.passes(one) for one, allowed in zip(results, sample.tolerances, strict=False))
    return passes and max((one.relative_error for one in results), default=0.0) > NO_EFFECT
