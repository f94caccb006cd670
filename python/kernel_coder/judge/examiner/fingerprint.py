"""Secret hashes of tensors, which show whether the contents have changed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

CHUNK = {"cuda": 1 << 22, "cpu": 1 << 14}
"""Number of words that are hashed at a time, by kind of device. The products of one chunk fit into the cache."""


def bits(tensor: Tensor) -> Tensor:
    """View a contiguous tensor's bytes as integers of the widest type that fits."""
    flat = tensor.reshape(-1).view(torch.uint8)
    for dtype in (torch.int32, torch.int16):
        if flat.numel() % dtype.itemsize == 0 and flat.storage_offset() % dtype.itemsize == 0:
            return flat.view(dtype)
    return flat


class Fingerprint:
    """Hashes tensors with secret multipliers, so that a candidate cannot change a tensor without changing its hash.

    >>> hashes, x = Fingerprint(torch.Generator().manual_seed(1)), torch.zeros(3)
    >>> before = hashes.of([x])
    >>> x[1] = 1
    >>> hashes.of([x]).equal(before)
    False
    """

    def __init__(self, rng: torch.Generator) -> None:
        self._rng = rng
        self._multipliers: Tensor | None = None

    def of(self, tensors: Iterable[Tensor]) -> Tensor:
        """Return one int64 hash for each tensor, on the tensors' device."""
        found = []
        for tensor in tensors:
            words, chunk = bits(tensor), CHUNK[tensor.device.type]
            if self._multipliers is None:
                self._multipliers = torch.randint(
                    -(1 << 62), 1 << 62, (chunk,), generator=self._rng, device=tensor.device, dtype=torch.int64
                )
            total: Tensor | None = None
            for index, start in enumerate(range(0, words.numel(), chunk)):
                part = words[start : start + chunk]
                of_part = (part * self._multipliers[: part.numel()]).sum()
                total = of_part if total is None else total * 31 + of_part + index
            if total is None:
                total = torch.zeros((), dtype=torch.int64, device=tensor.device)
            found.append(total)
        return torch.stack(found) if found else torch.zeros(0, dtype=torch.int64)
