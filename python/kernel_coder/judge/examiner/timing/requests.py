"""Timed requests: calls on inputs that the candidate has not seen before, and their expected outputs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.gathered import gathered_of
from kernel_coder.judge.examiner.refusals import Unsteady
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.examiner.task_memory import Variant
from kernel_coder.judge.examiner.timing_constants import STRANGE_EVERY
from kernel_coder.judge.examiner.tolerance import Tolerance
from kernel_coder.judge.wire.messages import TensorSpec, decode
from kernel_coder.judge.wire.trees import floating, tensors_of


class Request(NamedTuple):
    """The calls of one request to a Runner."""

    calls: int
    staged: Tensor
    """The inputs of all calls, as bytes that are copied to shared memory."""

    is_candidate: bool
    is_kept: bool
    """Whether the request is made beforehand, beside other requests. Then its outputs are copied, because the next
    request overwrites the shared memory."""

    expected: list[Tensor]
    """Each expected output for all calls, as [calls, ...]; empty for the reference, whose outputs are not compared."""

    strange: tuple[int, Sample] | None
    """Index and sample of a call on inputs of another family."""

    hashes: Tensor | None
    """Hashes of the inputs; None for the reference."""

    def for_reference(self) -> Request:
        """Return a request for the same calls to the reference's Runner."""
        return self._replace(is_candidate=False, expected=[], hashes=None)


class RequestMaker:
    """Makes the requests of one candidate's examination."""

    def __init__(self, checker: Checker) -> None:
        self.task, self.variant = checker.task, checker.task.variants[0]
        # In a timed call outputs are compared with the reference's, not the oracle's. Each may be a tolerance away from
        # the oracle, so they may be two tolerances apart.
        self.tolerances = [
            Tolerance(2 * one.rtol, 2 * one.atol, 2 * one.relative, one.reference_error)
            for one in self.task.own_tolerances
        ]
        self._until_strange = secrets.randbelow(STRANGE_EVERY)

    def make(self, calls: int, is_candidate: bool, is_kept: bool) -> Request:
        """Return a request of `calls` calls on fresh inputs."""
        task, variant, reference = self.task, self.variant, self.task.reference
        task.draws.seed_torch()
        staged = torch.empty_like(task.memory.region(variant, calls))
        has_room = is_kept or task.device.type != "cuda"
        strange = secrets.randbelow(calls) if is_candidate and has_room and self._is_strange() else -1
        sample: Sample | None = None
        specs = [*variant.input_specs, *variant.cotangent_specs]
        inputs = [each_call(staged, spec, variant.input_stride, calls).unbind() for spec in specs]
        # A request of one call that is used before the reference is called again needs no copy of the outputs. A task
        # that takes most of the GPU's memory has such requests.
        is_copied = calls > 1 or is_kept or strange >= 0
        expected = [
            torch.empty((calls, *spec.shape), dtype=spec.torch_dtype, device=task.device)
            for spec in variant.output_specs
            if is_candidate and is_copied
        ]
        outputs = [one.unbind() for one in expected]
        for call in range(calls):
            if call == strange:
                sample = self._strange_sample()
                _fill(inputs, call, [*sample.tensors, *sample.cotangents])
                continue
            drawn = reference.own_inputs(seeded=True)
            cotangents = reference.cotangents_of(drawn)
            if is_candidate and is_copied:
                _fill(outputs, call, reference.own_outputs(drawn, cotangents))
            elif is_candidate:
                expected = _of_one_call(reference.own_outputs(drawn, cotangents), variant.output_specs)
            _fill(inputs, call, [*tensors_of(drawn), *cotangents])
        hashes = task.fingerprint.of([inputs_in(staged, variant, calls)]) if is_candidate else None
        return Request(
            calls, staged, is_candidate, is_kept, expected, None if sample is None else (strange, sample), hashes
        )

    def has_same_integers(self, request: Request, index: int, output: Tensor) -> bool:
        """Return whether an output of integers is right in each call that differs from the expected one: its places
        point to equal numbers, or its numbers are rounded the other way.

        Args:
            request: the request of these calls.
            index: number of the output.
            output: the candidate's output for all calls, as [calls, ...].
        """
        if floating(output):
            return False
        variant, finder = self.variant, self.task.samples.places
        specs = [*variant.input_specs, *variant.cotangent_specs]
        given = [each_call(request.staged, one, variant.input_stride, request.calls) for one in specs]
        inputs, cotangents = given[: len(variant.input_specs)], given[len(variant.input_specs) :]
        for call, (got, wanted) in enumerate(zip(output, request.expected[index], strict=True)):
            if torch.equal(got, wanted):
                continue
            expected, of_call = [one[call] for one in request.expected], [one[call] for one in inputs]
            if index in finder.outputs:
                place = gathered_of(wanted, [one for one in [*of_call, *expected] if floating(one)])
                if place is not None and place.same(got, wanted):
                    continue
            args = decode(variant.input_tree, of_call.__getitem__)
            with self.task.draws.aside():
                limits = finder.rounded([index], args, [one[call] for one in cotangents], expected)
            if index not in limits or not limits[index].same(got, wanted):
                return False
        return True

    def bytes_of(self, calls: int) -> int:
        """Return the bytes of a round in the Examiner: inputs of two requests, and the outputs of one twice."""
        return 2 * calls * (self.variant.input_stride + self.variant.output_stride)

    def _is_strange(self) -> bool:
        """Return whether the candidate's next request has a call on inputs of another family. The places are secret,
        but at least one of :data:`STRANGE_EVERY` consecutive requests has one."""
        self._until_strange -= 1
        if self._until_strange >= 0:
            return False
        self._until_strange = secrets.randbelow(STRANGE_EVERY)
        return True

    def _strange_sample(self) -> Sample:
        families = [one for one in self.task.families if one != "own"] or ["own"]
        return self.task.sample(families[secrets.randbelow(len(families))], self.variant)


def inputs_in(memory: Tensor, variant: Variant, calls: int) -> Tensor:
    """Return the bytes of a request's inputs, without the gradients of the outputs. A backward may write over these, as
    fused ones do to save memory."""
    if not variant.cotangent_specs:
        return memory
    return memory.view(calls, variant.input_stride)[:, : variant.cotangent_specs[0].offset]


def each_call(memory: Tensor, spec: TensorSpec, stride: int, calls: int) -> Tensor:
    """Return one tensor of all calls as [calls, ...], in memory where each call has `stride` bytes. Nothing is copied.

    >>> each_call(torch.zeros(32, dtype=torch.uint8), TensorSpec((2,), "float32", 4), 16, 2)
    tensor([[0., 0.],
            [0., 0.]])
    """
    if spec.nbytes == 0:
        return torch.empty((calls, *spec.shape), dtype=spec.torch_dtype, device=memory.device)
    rows = memory[: calls * stride].view(calls, stride)[:, spec.offset : spec.offset + spec.nbytes]
    return rows.view(spec.torch_dtype).view(calls, *spec.shape)


def _of_one_call(outputs: Sequence[Tensor], specs: Sequence[TensorSpec]) -> list[Tensor]:
    """Return the outputs of a call as [1, ...], without copying those that are contiguous."""
    if [tuple(one.shape) for one in outputs] != [tuple(spec.shape) for spec in specs]:
        raise Unsteady("its inputs or outputs have other shapes from call to call")
    return [one.to(spec.torch_dtype).contiguous()[None] for one, spec in zip(outputs, specs, strict=True)]


def _fill(places: Sequence[Sequence[Tensor]], call: int, values: Sequence[Tensor]) -> None:
    """Copy a call's tensors to their places."""
    for place, value in zip(places, values, strict=True):
        if place[call].shape != value.shape:
            raise Unsteady("its inputs or outputs have other shapes from call to call")
        place[call].copy_(value)
