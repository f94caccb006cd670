"""Calls on slots of the shared memory, prepared so that a timed call does as little else as possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.wire.messages import TensorSpec, decode
from kernel_coder.judge.wire.shared_tensors import Arena


class PreparedCall(NamedTuple):
    """A call on one slot of the shared memory.

    Attributes:
        args: arguments of ``forward``.
        cotangents: gradients of the outputs; None if gradients are not checked.
        outputs: structure of the reference's outputs, encoded by :func:`~kernel_coder.judge.wire.messages.encode`.
        is_one_tensor: whether that structure is a single tensor.
        names: name of each output tensor in messages.
        specs: shape and dtype of each output tensor.
        places: place of each output tensor in shared memory.
    """

    args: list[Any]
    cotangents: list[Tensor] | None
    outputs: Any
    is_one_tensor: bool
    names: list[str]
    specs: list[TensorSpec]
    places: list[Tensor]


class PreparedCalls:
    """Prepares each call once.

    Args:
        plan: the Examiner's plan.
        inputs: the memory of inputs.
        outputs: the memory of outputs.
    """

    def __init__(self, plan: Mapping[str, Any], inputs: Arena, outputs: Arena) -> None:
        self.plan, self.inputs, self.outputs = plan, inputs, outputs
        self._known: dict[tuple[int, int], PreparedCall] = {}
        self._made: dict[int, list[Tensor]] = {}
        """Tensors that are copied in place of outputs, by variant."""

    def at(self, variant: int, slot: int) -> PreparedCall:
        """Return the call on a slot."""
        return self._known.get((variant, slot)) or self._prepare(variant, slot)

    def copy_only(self, variant: int, slot: int) -> None:
        """Copy tensors of the outputs' sizes to shared memory, as a call does, without calling the candidate."""
        places = self.at(variant, slot).places
        if variant not in self._made:
            self._made[variant] = [torch.empty_like(place) for place in places]
        for place, made in zip(places, self._made[variant], strict=True):
            place.copy_(made)

    def free_copies(self) -> None:
        """Free the tensors of :meth:`copy_only`."""
        self._made.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self._known.clear()
        self._made.clear()

    def _prepare(self, variant: int, slot: int) -> PreparedCall:
        plan = self.plan["variants"][variant]
        base = self.plan["slots_at"] + slot * plan["input_stride"]
        inputs = [self.inputs.apart(TensorSpec(*one), base) for one in plan["input_specs"]]
        cotangents = [self.inputs.apart(TensorSpec(*one), base) for one in plan["cotangents"]]
        specs = [TensorSpec(*one) for one in plan["output_specs"]]
        self._known[variant, slot] = PreparedCall(
            decode(plan["inputs"], lambda index: inputs[index]),
            cotangents or None,
            plan["outputs"],
            plan["outputs"][0] == "tensor",
            plan["names"],
            specs,
            [self.outputs.at(spec, slot * plan["output_stride"]) for spec in specs],
        )
        return self._known[variant, slot]
