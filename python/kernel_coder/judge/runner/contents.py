"""The content of tensors and their place in memory. An audit compares them before and after a kernel's launch."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Fingerprint = tuple[int, int]
"""Number of bytes of a tensor, and a hash of them."""

CHUNK_WORDS = 1 << 22
"""Number of 64-bit words that are hashed at a time. :func:`fingerprint` needs three times their 32 MiB."""


def tensors_in(values: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of some arguments, also those inside containers and in the ``base`` of a wrapper.

    Triton's tensor descriptors and reinterpreted tensors are such wrappers.

    >>> [name for name, _ in tensors_in({"x": torch.ones(1), "y": [1.0, (torch.ones(1),)]})]
    ['x', 'y[1][0]']
    """
    for name, value in values.items():
        if isinstance(value, Tensor):
            yield str(name), value
        elif isinstance(value, list | tuple):
            yield from tensors_in({f"{name}[{index}]": one for index, one in enumerate(value)})
        elif isinstance(value, dict):
            yield from tensors_in({f"{name}[{key!r}]": one for key, one in value.items()})
        elif isinstance(getattr(value, "base", None), Tensor):
            yield str(name), value.base


def _least_address() -> int:
    """Return the lowest address that a tensor can have: the heap's start, or 4 GiB if the heap lies above that."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 1 << 20
    heaps = [int(line.partition("-")[0], 16) for line in maps if line.endswith("[heap]")]
    return min([1 << 32, *heaps])


LEAST_ADDRESS = _least_address()
"""Smaller integers count as sizes. Linux and CUDA give tensors addresses above the first 4 GiB. Exceptions are small
tensors of a Python that is not position-independent, such as Debian's."""

MAX_POINTERS = 1024
"""Upper limit of the elements of an integer tensor that may be a table of addresses, as for grouped products."""


def with_pointed_at(values: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return the tensors in some arguments, and those whose addresses are given as integers or in a tensor.

    >>> x = torch.ones(4)
    >>> list(with_pointed_at({"x": x.data_ptr(), "n": 4}))
    ['x']
    """
    found = dict(tensors_in(values))
    plain = {str(name): getattr(one, "value", one) for name, one in values.items()}  # c_void_p has a value
    integers = {name: [one] for name, one in plain.items() if type(one) is int and LEAST_ADDRESS <= one < 1 << 63}
    for name, one in found.items():
        if one.dtype == torch.int64 and 0 < one.numel() <= MAX_POINTERS:
            there = one.detach().reshape(-1).tolist()
            if all(number >= LEAST_ADDRESS for number in there):
                integers[name] = there
    if not integers:
        return found
    live = [one for one in gc.get_objects() if issubclass(type(one), Tensor) and _has_memory(one)]
    for name, numbers in integers.items():
        for index, number in enumerate(numbers):
            owner = next((one for one in live if number in _span_of(one)), None)
            if owner is not None:
                found[name if len(numbers) == 1 else f"{name}[{index}]"] = owner
    return found


def _has_memory(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.numel() > 0


def _span_of(tensor: Tensor) -> range:
    """Return the addresses from the tensor's first element to the end of its storage."""
    return range(tensor.data_ptr(), storage_of(tensor) + tensor.untyped_storage().nbytes())


def contains(tensors: Iterator[Tensor] | list[Tensor], tensor: Tensor) -> bool:
    """Return whether the tensor itself, not an equal one, is among the tensors."""
    return any(one is tensor for one in tensors)


def storage_of(tensor: Tensor) -> int:
    """Return the address of the tensor's storage, which identifies the memory that it shares with its views."""
    return tensor.untyped_storage().data_ptr()


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes in the order of its elements, as one dimension of uint8; a view where possible."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # reshape keeps the stride of an expanded, an empty or a single element
        flat = flat.new_empty(flat.shape).copy_(flat)
    return flat.view(torch.uint8)


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Return the number of bytes and a hash of them in the order of the elements. Layout and dtype do not matter.

    >>> x = torch.arange(6.0)
    >>> fingerprint(x) == fingerprint(x.view(2, 3)), fingerprint(x) == fingerprint(x.view(2, 3).t())
    (True, False)
    """
    flat = bytes_of(tensor)
    whole = flat.numel() // 8 * 8
    words = flat[:whole] if flat.storage_offset() % 8 == 0 else flat[:whole].clone()
    words = words.view(torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, words.numel(), CHUNK_WORDS):
        part = words[start : start + CHUNK_WORDS]
        total += (part * _multipliers(start, part.numel(), flat.device)).sum()
    if whole < flat.numel():
        tail = flat[whole:].to(torch.int64) + 1
        total += (tail * _multipliers(-8, tail.numel(), flat.device)).sum()
    return flat.numel(), int(total)


def _multipliers(start: int, size: int, device: torch.device) -> Tensor:
    """Return odd numbers that look random, one for each position: a round of SplitMix64 with signed shifts."""
    mixed = torch.arange(start, start + size, dtype=torch.int64, device=device) * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47
    return (mixed ^ (mixed >> 27)) | 1


def is_one_value(tensor: Tensor) -> bool:
    """Return whether all elements have the same bits. False for a single element, which may be the result of a sum.

    >>> [is_one_value(one) for one in (torch.full((2, 2), float("nan")), torch.tensor([0.0, -0.0]), torch.ones(1))]
    [True, False, False]
    """
    if tensor.numel() < 2:
        return tensor.numel() == 0
    rows = bytes_of(tensor).view(tensor.numel(), -1)
    return bool((rows == rows[0]).all())


def is_cast_of(tensor: Tensor, content: Fingerprint, source: Tensor) -> bool:
    """Return whether the tensor is the source in another dtype.

    Args:
        tensor: the possible copy.
        content: fingerprint of the possible copy.
        source: the possible original.
    """
    if source.numel() != tensor.numel() or source.dtype == tensor.dtype or tensor.numel() < 2:
        return False
    return fingerprint(source.detach().to(tensor.dtype)) == content


def warm_up(tensor: Tensor) -> None:
    """Run once, on a small tensor, every check of this module, so that torch loads the GPU kernels they need.

    >>> warm_up(torch.zeros(2))
    """
    content = fingerprint(tensor)
    is_one_value(tensor)
    is_cast_of(tensor, content, tensor.to(torch.float16))
