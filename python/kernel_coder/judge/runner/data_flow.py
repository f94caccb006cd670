"""Follows the data of own kernels through an audited call: did a launch compute anything, and which tensors contain it?

This runs in the candidate's process, so the result is used only against the candidate. Work that is not seen here does
not count for the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kernel_coder.judge.runner.contents import (
    Fingerprint,
    contains,
    fingerprint,
    is_cast_of,
    is_one_value,
    storage_of,
    tensors_in,
)


class DataFlow:
    """Knows which memory and which numbers contain data of own kernels, in one audited call.

    Memory is identified by its address. A number that Python code reads from a tensor has the address of its element. A
    number that an extension function returns has no address, and gets a negative one.
    """

    def __init__(self) -> None:
        self.reached: set[int] = set()
        """Storages that contain data of own kernels."""
        self.numbers: set[int] = set()
        """Addresses of the numbers from own kernels that Python code has read."""
        self._library_results: set[Fingerprint] = set()
        self._written: set[int] = set()  # storages that own kernels wrote within the operator that runs now

    def reaches(self, tensor: Tensor) -> bool:
        """Return whether a tensor may contain data of own kernels.

        Once Python code has read a number of own kernels, every later tensor may. A Boolean is a decision and not such
        a number.
        """
        return bool(self.numbers) or storage_of(tensor) in self.reached

    def launch(
        self,
        tensors: Mapping[str, Tensor],
        before: Mapping[str, Fingerprint],
        made: list[Tensor] | None = None,
        has_numbers: bool = False,
    ) -> tuple[tuple[str, ...], bool]:
        """Process a launch of an own kernel or a call of an own function.

        Args:
            tensors: tensor arguments by name.
            before: their fingerprints before the launch.
            made: tensors that a function returned and that were not its arguments.
            has_numbers: a function returned numbers.

        Returns:
            The names of what it changed, with ``result`` for what it returned; and whether it only moved data: each
            changed or returned tensor is a copy or a cast of something that was there before, or one value repeated.
        """
        made = made or []
        after = {name: fingerprint(one) for name, one in tensors.items()}
        changed = {name: one for name, one in tensors.items() if after[name] != before[name]}
        kept = [one for name, one in tensors.items() if name not in changed]
        known = set(before.values()) | self._library_results
        new = list(changed.values()) + made
        contents = [after[name] for name in changed] + [fingerprint(one) for one in made]
        moves = not has_numbers and all(
            content in known or is_one_value(one) or any(is_cast_of(one, content, source) for source in kept)
            for one, content in zip(new, contents, strict=True)
        )
        written = {storage_of(one) for one in new}
        self.reached |= written
        self._written |= written
        numbers = {~len(self.numbers)} if has_numbers else set()
        self.numbers |= numbers
        return (*changed, *(("result",) if made else ())), moves

    def library_result(self, result: Any) -> None:
        """Remember the result of a library's operator: a kernel that copies it computes nothing."""
        self._library_results |= {fingerprint(one) for _, one in tensors_in({"": result})}

    def operator(self, operator: Any, given: Mapping[Any, Any], result: Any, is_own: bool) -> None:
        """Process a call of an operator: data flows from its arguments to its results and to what it writes.

        Args:
            operator: an ``OpOverload``.
            given: the arguments by position and by name.
            result: the operator's result.
            is_own: the operator is not torch's and launched own kernels, so its results contain their data.
        """
        inputs = [one for _, one in tensors_in(given)]
        results = [one for _, one in tensors_in({"": result})]
        has_data = is_own or any(storage_of(one) in self.reached for one in inputs)
        for one in results:
            if has_data:
                self.reached.add(storage_of(one))
            elif storage_of(one) not in self._written and not contains(inputs, one):
                self._forget(one)
        if has_data:
            self.reached |= {storage_of(one) for one in _written_by(operator, given)}
        name = operator._schema.name
        if name == "aten::_local_scalar_dense" and has_data and inputs[0].dtype != torch.bool:
            self.numbers.add(inputs[0].data_ptr())
        self._written.clear()

    def _forget(self, tensor: Tensor) -> None:
        """Drop what is known about a new tensor's memory: it was about an earlier tensor at the same place."""
        self.reached.discard(storage_of(tensor))


def _written_by(operator: Any, given: Mapping[Any, Any]) -> list[Tensor]:
    """Return the arguments that an operator writes to, according to its schema."""
    arguments = operator._schema.arguments
    keys = [*enumerate(arguments), *((argument.name, argument) for argument in arguments)]
    changed = {key: given[key] for key, argument in keys if key in given and argument.is_write}
    return [one for _, one in tensors_in(changed)]


def has_numbers(value: Any) -> bool:
    """Return whether a function's result contains a number.

    >>> has_numbers([1.5]), has_numbers((True, "a"))
    (True, False)
    """
    if isinstance(value, dict):
        return any(map(has_numbers, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_numbers, value))
    return isinstance(value, int | float) and not isinstance(value, bool)
