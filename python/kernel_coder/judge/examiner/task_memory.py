"""The memory of one task that the Examiner shares with Runners, and the place of each tensor in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.config import JudgeConfig
from kernel_coder.judge.examiner.memory_estimates import slot_bytes
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
from kernel_coder.judge.wire.trees import floating

UNTIMED_SLOTS = 8
"""Upper limit of the calls in one request if nothing is timed: enough for the families that share a request."""

CLEARED_BYTES = 1 << 25
"""Upper limit of the shared memory on the host that is cleared before each candidate. Clearing takes time."""


@dataclass
class Variant:
    """One set of input sizes, and the layout of a call's inputs and outputs of these sizes."""

    sizes: str | None
    """How the sizes differ from the task's own; None: they are the task's own."""

    get_inputs: Callable[[], Any] | None
    """Draws inputs of these sizes; None: the task's own function draws them."""

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
    """Name of each output in messages."""

    slots: int = 1
    """Number of calls whose inputs and outputs fit into the memory at the same time."""

    def as_plan(self) -> dict[str, Any]:
        """Return the part of the plan that tells a Runner about this variant."""
        return {
            "inputs": self.input_tree,
            "input_specs": self.input_specs,
            "cotangents": self.cotangent_specs,
            "input_stride": self.input_stride,
            "outputs": self.output_tree,
            "output_specs": self.output_specs,
            "output_stride": self.output_stride,
            "names": self.names,
        }


def input_layout(sample: Sample) -> tuple[Any, list[TensorSpec], list[TensorSpec], int]:
    """Return the encoded inputs of a sample, their specs, the specs of its cotangents, and the size of all in bytes.
    Raise Refused for an input that cannot be sent to a Runner."""
    tree, tensors = _encoded(sample.inputs)
    specs, end = laid_out(tensors)
    cotangents, end = laid_out(sample.cotangents, end)
    return tree, specs, cotangents, end


def variant_of(
    layout: tuple[Any, list[TensorSpec], list[TensorSpec], int],
    outputs: Any,
    sizes: str | None,
    get_inputs: Callable[[], Any] | None,
    trained: Sequence[str] = (),
) -> Variant:
    """Make a variant from the layout of its inputs and the reference's outputs for them. If gradients are compared,
    `outputs` is a pair: the outputs and the gradients. `trained` has the names of the parameters."""
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
        names=_names_of(output_tree, tree, specs, trained) if cotangents else names_of_leaves(output_tree, "output"),
    )


def _names_of(output_tree: Any, input_tree: Any, input_specs: list[TensorSpec], trained: Sequence[str]) -> list[str]:
    """Return the names of outputs and of their gradients with respect to inputs and parameters."""
    outputs, _ = output_tree[1]
    inputs = zip(names_of_leaves(input_tree, "input"), input_specs, strict=True)
    leaves = [name for name, spec in inputs if floating(torch.empty(0, dtype=spec.torch_dtype))]
    return names_of_leaves(outputs, "output") + [f"the gradient of {name}" for name in [*leaves, *trained]]


class TaskMemory:
    """The shared memory of one task."""

    def __init__(self, reference: Reference, variants: Sequence[Variant], config: JudgeConfig) -> None:
        """Lay out and allocate the memory, and set each variant's `slots`."""
        self.reference = reference
        self.init_tree, self._init_tensors = _encoded([reference.args, reference.kwargs])
        self.init_specs, end = laid_out(self._init_tensors)
        state = state_of(reference.module)
        specs, end = laid_out(list(state.values()), end)
        self.state_specs = list(zip(state, specs, strict=True))
        """Name and place of each parameter and buffer."""

        self.slots_at = end
        """Offset of the first call's inputs, in bytes."""

        device = reference.device
        for variant in variants:
            fits = max(slot_bytes(device) // (variant.input_stride + variant.output_stride), 1)
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
        """Offset in a Runner's output memory of the number for which the Runner's stream waits."""
        return self.candidate_outputs.size - ALIGNMENT

    @property
    def done_at(self) -> int:
        """Offset where the Runner's stream writes the same number after the last launch of a request."""
        return self.gate_at + ALIGNMENT // 2

    def reference_outputs(self) -> Arena:
        """Return the output memory of the reference's own Runner, and allocate it at the first call."""
        if self._reference_outputs is None:
            self._reference_outputs = Arena(self.candidate_outputs.size, self.reference.device)
        return self._reference_outputs

    def write_state(self) -> None:
        """Write the constructor arguments and parameters again: the last candidate could overwrite them."""
        for spec, tensor in zip(self.init_specs, self._init_tensors, strict=True):
            self.inputs.at(spec).copy_(tensor)
        for (_, spec), tensor in zip(self.state_specs, state_of(self.reference.module).values(), strict=True):
            self.inputs.at(spec).copy_(tensor.detach())

    def forget(self) -> None:
        """Overwrite what the last candidate may have left in memory for the next one, also between tensors."""
        for arena in (self.inputs, self.candidate_outputs):
            if self.reference.device.type == "cuda" or arena.size <= CLEARED_BYTES:
                arena.bytes.zero_()

    def region(self, variant: Variant, calls: int) -> Tensor:
        """Return the bytes of the inputs of `calls` calls, beginning with the first slot."""
        return self.inputs.bytes[self.slots_at : self.slots_at + calls * variant.input_stride]

    def write(self, variant: Variant, slot: int, tensors: Sequence[Tensor]) -> None:
        """Write a call's inputs and cotangents to its slot."""
        base = self.slots_at + slot * variant.input_stride
        for spec, tensor in zip([*variant.input_specs, *variant.cotangent_specs], tensors, strict=True):
            self.inputs.at(spec, base).copy_(tensor)

    def written(self, variant: Variant, slot: int) -> list[Tensor]:
        """Return the inputs that are in a slot now."""
        base = self.slots_at + slot * variant.input_stride
        return [self.inputs.at(spec, base) for spec in variant.input_specs]

    @property
    def bytes_held(self) -> int:
        """Bytes shared with Runners, and of the parameters: as they are, as drawn at construction, and in float64."""
        arenas = (self.inputs, self.candidate_outputs, self._reference_outputs)
        state = sum(spec.nbytes for _, spec in self.state_specs)
        return sum(arena.size for arena in arenas if arena is not None) + 4 * state

    def close(self) -> None:
        """Free the shared memory in this process."""
        for arena in (self.inputs, self.candidate_outputs, self._reference_outputs):
            if arena is not None:
                arena.close()


def outputs_at(arena: Arena, variant: Variant, slot: int) -> list[Tensor]:
    """Return the outputs of a call in a Runner's output memory."""
    return [arena.at(spec, slot * variant.output_stride) for spec in variant.output_specs]


def _encoded(value: Any) -> tuple[Any, list[Tensor]]:
    tensors: list[Tensor] = []
    try:
        return encode(value, tensors), tensors
    except Unsendable as error:
        raise Refused(str(error)) from None
