"""Memory that the Examiner shares with Runners for one task, and where in it each tensor is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.memory_estimates import SLOT_BYTES
from kernel_coder.judge.examiner.reference import Reference
from kernel_coder.judge.examiner.refusals import Refused
from kernel_coder.judge.examiner.samples import Sample
from kernel_coder.judge.wire.messages import (
    ALIGNMENT,
    MAX_SLOTS,
    TensorSpec,
    Unsendable,
    encode,
    laid_out,
    names_of_leaves,
)
from kernel_coder.judge.wire.module_calls import state_of
from kernel_coder.judge.wire.shared_tensors import Arena

UNTIMED_SLOTS = 8
"""Upper limit of the calls in one request where nothing is timed: as many families share a request."""

CLEARED_BYTES = 1 << 25
"""Shared memory on the host that is cleared before each candidate, at most, in bytes: it takes time."""


@dataclass
class Variant:
    """One set of input sizes, and the layout of a call's inputs and outputs of these sizes."""

    sizes: str | None
    """How the sizes differ from the task's own; None: they are the task's own."""

    get_inputs: Callable[[], Any] | None
    """Draws inputs of these sizes; None: the task's own function does."""

    input_tree: Any
    input_specs: list[TensorSpec]
    cotangent_specs: list[TensorSpec]
    input_stride: int
    """Bytes from one call's inputs to the next one's."""

    output_tree: Any
    output_specs: list[TensorSpec]
    output_stride: int
    """Bytes from one call's outputs to the next one's."""

    names: list[str]
    """How each output is called in messages."""

    slots: int = 1
    """Calls whose inputs and outputs fit into the memory at the same time."""

    def as_plan(self) -> dict[str, Any]:
        """What a Runner is told."""
        return {
            "inputs": self.input_tree,
            "input_specs": self.input_specs,
            "cotangents": self.cotangent_specs,
            "input_stride": self.input_stride,
            "outputs": self.output_tree,
            "output_specs": self.output_specs,
            "output_stride": self.output_stride,
        }


def input_layout(sample: Sample) -> tuple[Any, list[TensorSpec], list[TensorSpec], int]:
    """Tree and places of a sample's inputs, places of its cotangents, and bytes in all. Raises Refused for an input
    that cannot be handed to a Runner."""
    tree, tensors = _encoded(sample.inputs)
    specs, end = laid_out(tensors)
    cotangents, end = laid_out(sample.cotangents, end)
    return tree, specs, cotangents, end


def variant_of(
    layout: tuple[Any, list[TensorSpec], list[TensorSpec], int],
    outputs: Any,
    sizes: str | None,
    get_inputs: Callable[[], Any] | None,
) -> Variant:
    """From the layout of inputs, and the reference's outputs for them."""
    tree, specs, cotangents, end = layout
    tensors: list[Tensor] = []
    output_tree = encode(outputs, tensors)
    output_specs, output_end = laid_out(tensors)
    return Variant(
        sizes=sizes,
        get_inputs=get_inputs,
        input_tree=tree,
        input_specs=specs,
        cotangent_specs=cotangents,
        input_stride=max(end, ALIGNMENT),
        output_tree=output_tree,
        output_specs=output_specs,
        output_stride=max(output_end, ALIGNMENT),
        names=names_of_leaves(output_tree),
    )


class TaskMemory:
    """Shared memory of one task."""

    def __init__(self, reference: Reference, variants: Sequence[Variant], config: JudgeConfig) -> None:
        """Lay out and allocate it, and set each variant's `slots`."""
        self.reference = reference
        self.init_tree, self._init_tensors = _encoded([reference.args, reference.kwargs])
        self.init_specs, end = laid_out(self._init_tensors)
        state = state_of(reference.module)
        specs, end = laid_out(list(state.values()), end)
        self.state_specs = list(zip(state, specs, strict=True))
        """Name and place of each parameter and buffer."""

        self.slots_at = end
        """Where the first call's inputs begin, in bytes."""

        device = reference.device
        for variant in variants:
            fits = max(SLOT_BYTES[device.type] // (variant.input_stride + variant.output_stride), 1)
            variant.slots = min(fits, MAX_SLOTS if config.timing else UNTIMED_SLOTS)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        inputs = self.slots_at + max(v.slots * v.input_stride for v in variants)
        outputs = max(v.slots * v.output_stride for v in variants) + ALIGNMENT
        self.inputs = Arena(inputs, device)
        self.candidate_outputs = Arena(outputs, device)
        self._reference_outputs: Arena | None = None

    @property
    def gate_at(self) -> int:
        """Where the number that opens a Runner's gate is, in its output memory."""
        return self.candidate_outputs.size - ALIGNMENT

    @property
    def done_at(self) -> int:
        """Where a Runner's stream writes that number behind the last launch of a request."""
        return self.gate_at + ALIGNMENT // 2

    def reference_outputs(self) -> Arena:
        """The output memory of the reference's own Runner, allocated at the first call."""
        if self._reference_outputs is None:
            self._reference_outputs = Arena(self.candidate_outputs.size, self.reference.device)
        return self._reference_outputs

    def write_state(self) -> None:
        """Write constructor arguments and the reference's parameters again. The last candidate could write to them."""
        for spec, tensor in zip(self.init_specs, self._init_tensors, strict=True):
            self.inputs.at(spec).copy_(tensor)
        for (_, spec), tensor in zip(self.state_specs, state_of(self.reference.module).values(), strict=True):
            self.inputs.at(spec).copy_(tensor.detach())

    def forget(self) -> None:
        """Overwrite what the last candidate may have left for the next one, between tensors as well."""
        for arena in (self.inputs, self.candidate_outputs):
            if self.reference.device.type == "cuda" or arena.size <= CLEARED_BYTES:
                arena.bytes.zero_()

    def region(self, variant: Variant, calls: int) -> Tensor:
        """Bytes of the inputs of so many calls, from the first slot on."""
        return self.inputs.bytes[self.slots_at : self.slots_at + calls * variant.input_stride]

    def write(self, variant: Variant, slot: int, tensors: Sequence[Tensor]) -> None:
        """Write a call's inputs and cotangents to its slot."""
        base = self.slots_at + slot * variant.input_stride
        for spec, tensor in zip([*variant.input_specs, *variant.cotangent_specs], tensors, strict=True):
            self.inputs.at(spec, base).copy_(tensor)

    def written(self, variant: Variant, slot: int) -> list[Tensor]:
        """The inputs in a slot, as they are now."""
        base = self.slots_at + slot * variant.input_stride
        return [self.inputs.at(spec, base) for spec in variant.input_specs]

    @property
    def bytes_held(self) -> int:
        """Bytes shared with Runners, and of the reference's parameters: as they are, as first drawn, and in float64."""
        arenas = (self.inputs, self.candidate_outputs, self._reference_outputs)
        state = sum(spec.nbytes for _, spec in self.state_specs)
        return sum(arena.size for arena in arenas if arena is not None) + 4 * state

    def close(self) -> None:
        """Free the shared memory in this process."""
        for arena in (self.inputs, self.candidate_outputs, self._reference_outputs):
            if arena is not None:
                arena.close()


def outputs_at(arena: Arena, variant: Variant, slot: int) -> list[Tensor]:
    """The outputs of a call in a Runner's output memory."""
    return [arena.at(spec, slot * variant.output_stride) for spec in variant.output_specs]


def _encoded(value: Any) -> tuple[Any, list[Tensor]]:
    tensors: list[Tensor] = []
    try:
        return encode(value, tensors), tensors
    except Unsendable as error:
        raise Refused(str(error)) from None
