"""Timed requests: calls on inputs that the candidate has not seen before, and the outputs that are expected."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.examiner.checks import Checker
from kernel_coder.judge.examiner.link import Link
from kernel_coder.judge.examiner.timing_constants import STRANGE_EVERY
from kernel_coder.judge.examiner.tolerance import Tolerance
from kernel_coder.judge.wire.shared_tensors import tensor_at
from kernel_coder.judge.wire.trees import tensors_of


class Expected(NamedTuple):
    """What is expected of one call."""

    outputs: list[Tensor]
    tolerances: Sequence[Tolerance]
    family: str = "own"


class Request(NamedTuple):
    """A request to one Runner."""

    link: Link
    calls: int
    staged: Tensor | None
    """Bytes: inputs of all calls, to be copied to shared memory; None: they are there already."""

    is_kept: bool
    """Whether it waits in memory beside other requests. Then nothing of it may stay in shared memory, where the next
    one will be."""

    expected: list[Expected]
    """Of each call; empty for the reference, with which nothing is compared."""

    hashes: Tensor | None
    """Of the inputs; None for the reference."""

    def again(self, link: Link) -> Request:
        """The same request to the reference's Runner."""
        return self._replace(link=link, expected=[], hashes=None)


class RequestMaker:
    """Makes the requests of one candidate's examination."""

    def __init__(self, checker: Checker, reference: Link) -> None:
        self.task, self.reference = checker.task, reference
        self.variant = self.task.variants[0]
        self.is_gpu = self.task.device.type == "cuda"
        # In a timed call outputs are compared with the reference's. A tolerance is the distance from the oracle, and
        # the reference is within it as well, so twice the tolerance is allowed.
        self.tolerances = [
            Tolerance(2 * one.rtol, 2 * one.atol, 2 * one.relative, one.reference_error)
            for one in self.task.own_tolerances
        ]
        self._until_strange = secrets.randbelow(STRANGE_EVERY)

    def make(self, link: Link, calls: int, is_kept: bool) -> Request:
        """A request of `calls` calls on fresh inputs."""
        task = self.task
        task.draws.seed_torch()
        is_candidate = link is not self.reference
        region = task.memory.region(self.variant, calls)
        is_staged = is_kept or task.known.keeps_inputs_back or not self.is_gpu
        staged = torch.empty_like(region) if is_staged else None
        memory = region if staged is None else staged
        has_room = is_kept or not self.is_gpu
        strange = secrets.randbelow(calls) if is_candidate and has_room and self._is_strange() else -1
        expected = [
            self._strange_call(memory, slot) if slot == strange else self._fresh_call(memory, slot, is_candidate)
            for slot in range(calls)
        ]
        hashes = task.fingerprint.of([memory]) if is_candidate else None
        return Request(link, calls, staged, is_kept, expected, hashes)

    def bytes_of(self, calls: int) -> int:
        """Bytes of a round while it is kept: inputs of two requests, and twice the outputs of one."""
        return 2 * calls * (self.variant.input_stride + self.variant.output_stride)

    def _is_strange(self) -> bool:
        """Whether the candidate's next request has a call on inputs of another kind. At secret places, but one of
        :data:`STRANGE_EVERY` requests in a row does."""
        self._until_strange -= 1
        if self._until_strange >= 0:
            return False
        self._until_strange = secrets.randbelow(STRANGE_EVERY)
        return True

    def _strange_call(self, memory: Tensor, slot: int) -> Expected:
        """Write inputs of another kind than the task's own."""
        families = [one for one in self.task.families if one != "own"] or ["own"]
        sample = self.task.sample(families[secrets.randbelow(len(families))], self.variant)
        self._write(memory, slot, [*sample.tensors, *sample.cotangents])
        return Expected(sample.expected, sample.tolerances, sample.family)

    def _fresh_call(self, memory: Tensor, slot: int, is_checked: bool) -> Expected:
        """Write fresh inputs of the task's own kind. The expected outputs are the reference's, if they are compared."""
        reference = self.task.reference
        inputs = reference.own_inputs(seeded=True)
        cotangents = reference.cotangents_of(inputs)
        expected = reference.own_outputs(inputs, cotangents) if is_checked else []
        # Written last. Inputs that are too large to be kept back are visible to the candidate's process from here on,
        # and a thread of it could begin to compute.
        self._write(memory, slot, [*tensors_of(inputs), *cotangents])
        return Expected(expected, self.tolerances)

    def _write(self, memory: Tensor, slot: int, values: Sequence[Tensor]) -> None:
        variant = self.variant
        for spec, value in zip([*variant.input_specs, *variant.cotangent_specs], values, strict=True):
            tensor_at(memory, spec, slot * variant.input_stride).copy_(value)
