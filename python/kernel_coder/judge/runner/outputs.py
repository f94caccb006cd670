"""The structure of a candidate's outputs, and the memory that they lie in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from kernel_coder.judge.wire.messages import TensorSpec, dtype_name, encode, same_structure


class WrongStructure(Exception):
    """Raised if an output differs from the reference's in number, shape, dtype, device or type."""


def fits(tensor: Tensor, place: Tensor) -> bool:
    """Return whether an output has the shape, dtype and device of its place in shared memory."""
    return tensor.shape == place.shape and tensor.dtype == place.dtype and tensor.device == place.device


def check(name: str, tensor: Any, place: Tensor, spec: TensorSpec) -> None:
    """Raise :class:`WrongStructure` if an output is not a plain tensor of the expected shape, dtype and device."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        raise WrongStructure(f"{name} must be a plain tensor; got a {type(tensor).__name__}")
    if tensor.shape != place.shape:
        raise WrongStructure(f"{name} has the wrong shape: expected {list(spec.shape)}, got {list(tensor.shape)}")
    if tensor.dtype != place.dtype:
        raise WrongStructure(f"{name} has the wrong dtype: expected {spec.dtype}, got {dtype_name(tensor.dtype)}")
    if tensor.device != place.device:
        raise WrongStructure(f"{name} is on the wrong device: expected {place.device}, got {tensor.device}")


def taken_apart(result: Any, expected: Any) -> list[Tensor]:
    """Return the tensors in the candidate's result. Its structure must be the expected one."""
    found: list[Tensor] = []
    try:
        tree = encode(result, found)
    except ValueError as error:
        raise WrongStructure(str(error)) from None
    if not same_structure(expected, tree):
        raise WrongStructure(f"it returned {_described(tree)} instead of {_described(expected)}")
    return found


def _described(tree: Any) -> str:
    """Describe an encoded structure in words.

    >>> _described(["tuple", [["tensor", 0], ["value", 1]]])
    '(a tensor, 1)'
    """
    kind, what = tree
    if kind in ("list", "tuple"):
        return "(" + ", ".join(_described(one) for one in what) + ")"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {_described(one)}" for key, one in what) + "}"
    return {"tensor": "a tensor", "number": "a number"}.get(kind, repr(what))


class OutputMemory:
    """Observes in which memory a candidate returns the outputs of audited calls."""

    def __init__(self) -> None:
        self.is_aliased = False
        """Whether an output of the last audited calls shared memory with an input."""
        self.is_reused = False
        """Whether an audited call wrote an output to the memory of the output of the audited call before it. Then a
        caller that keeps the output of one call finds the values of the next call in it."""
        self._returned: dict[int, StorageWeakRef] = {}
        """Memory of the last audited call's outputs, by address."""

    def look(self, found: list[Tensor], inputs: list[Tensor], others: Iterable[Tensor]) -> None:
        """Look at the outputs of an audited call.

        Args:
            found: the outputs.
            inputs: the inputs of that call.
            others: further tensors in which an output may lie, since the reference returns them, too: its own
                parameters and buffers, and gradients of the outputs.
        """
        given, fixed = ({_address(one) for one in some} for some in (filled(inputs), others))
        storages = {_address(one): one.untyped_storage() for one in filled(found)}
        self.is_aliased |= bool(given & storages.keys())
        before, known = self._returned, given | fixed
        self._returned = {address: StorageWeakRef(one) for address, one in storages.items() if address not in known}
        self.is_reused |= any(not before[address].expired() for address in self._returned.keys() & before.keys())


def filled(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors that have elements."""
    return [one for one in tensors if one.numel()]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
