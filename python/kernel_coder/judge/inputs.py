"""Inputs and parameters that a candidate cannot foresee, of kinds that tell right from nearly right.

========== ============================================================================================================
own        what the task's ``get_inputs`` gives, with a fresh seed
normal     standard normal numbers
scaled     the task's own, times 10, with random signs
shifted    the task's own, plus 5
structured the task's own, with rows that are constant, rows that are zero, and a few elements of 100 or -100
========== ============================================================================================================

Integers and bools stay the task's own, and so do numbers with a point that are all whole: they are indices, classes or
masks. What an input's own numbers have in common is kept, since a solution may rely on it: zeros above or below a
diagonal stay zeros, a symmetric matrix stays symmetric, sorted rows stay sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

OUTLIER = 100.0
"""exp(100) is no float32: who forgets to subtract the maximum finds out."""

WHOLE = float(1 << 20)
"""Numbers beyond are not said to be whole, as all large ones are."""

SOME = 1000
"""Elements that most tensors show in what they are not."""

CHUNK = {"cuda": 1 << 22, "cpu": 1 << 14}
"""Words that a fingerprint takes at a time."""


def floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def is_whole(own: Tensor) -> bool:
    """Floating-point numbers that are all whole, and not all the same: indices, classes, a mask, signs.

    >>> [is_whole(torch.tensor(one)) for one in ([0.0, 7.0], [-1.0, 1.0], [1.0, 1.0], [0.5, 1.0], [0, 1])]
    [True, True, False, False, False]
    """
    if not own.is_floating_point():
        return False

    def are(some: Tensor) -> bool:
        return bool(((some == some.round()) & (some.abs() <= WHOLE)).all())

    flat = own.reshape(-1)
    return are(flat[:SOME]) and are(flat) and bool((flat != flat[:1]).any())


def _is_sorted(own: Tensor) -> bool:
    """Along the last dimension, and not constant there."""
    if own.dim() == 0 or own.shape[-1] <= 2 or own.is_complex():
        return False

    def are(some: Tensor) -> bool:
        return bool((some[..., 1:] >= some[..., :-1]).all())

    return are(own.reshape(-1, own.shape[-1])[0, :SOME]) and are(own) and bool((own[..., 0] < own[..., -1]).any())


def _like_own(new: Tensor, own: Tensor) -> Tensor:
    """The new numbers with the pattern that the task's own have."""
    if _is_sorted(own):
        new = new.sort(dim=-1).values
    if own.dim() >= 2 and own.shape[-1] == own.shape[-2] > 1 and torch.equal(own, own.transpose(-1, -2)):
        new = (new + new.transpose(-1, -2)) / 2
    zeros = own == 0
    if zeros.sum() > 0.05 * own.numel():
        new.masked_fill_(zeros, 0)
    return new.to(own.dtype)


def _random(own: Tensor, rng: torch.Generator) -> Tensor:
    dtype = own.dtype if own.is_complex() else torch.float32
    return torch.randn(own.shape, generator=rng, device=own.device, dtype=dtype)


def _normal(own: Tensor, rng: torch.Generator) -> Tensor:
    return _random(own, rng)


def _scaled(own: Tensor, rng: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, own.shape, generator=rng, device=own.device, dtype=torch.int8).mul_(2).sub_(1)
    return (own * signs).mul_(10)


def _shifted(own: Tensor, rng: torch.Generator) -> Tensor:
    return own + 5


def _structured(own: Tensor, rng: torch.Generator) -> Tensor:
    new = own.clone().reshape(-1, own.shape[-1]) if own.dim() else own.clone().reshape(1, 1)
    kinds = torch.rand(new.shape[0], generator=rng, device=own.device)[:, None]
    # In place, for it may be large.
    torch.where(kinds < 0.15, new[:, :1].clone(), new, out=new)  # constant
    new.masked_fill_((kinds >= 0.15) & (kinds < 0.25), 0)
    chance = torch.rand(new.shape, generator=rng, device=own.device)
    rate = min(0.5 / max(new.shape[-1], 1), 0.01)
    new.masked_fill_(chance < rate, OUTLIER)
    new = new.masked_fill_(chance > 1 - rate, -OUTLIER).reshape(-1)
    if len(new) > 1:  # one of each at least, or a check would find out by luck
        low, high = torch.randint(len(new), (2, 1), generator=rng, device=own.device)
        new.index_fill_(0, low, -OUTLIER).index_fill_(0, high, OUTLIER)
    return new.reshape(own.shape)


MAKERS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "normal": _normal,
    "scaled": _scaled,
    "shifted": _shifted,
    "structured": _structured,
}


def of_family(family: str, own: Tensor, rng: torch.Generator) -> Tensor:
    """An input of another kind, made from the task's own.

    >>> rng = torch.Generator().manual_seed(0)
    >>> of_family("normal", torch.tril(torch.rand(2, 2)), rng)[0, 1], of_family("shifted", torch.ones(2), rng)
    (tensor(0.), tensor([6., 6.]))
    """
    if family == "own" or not floating(own) or own.numel() == 0 or is_whole(own):
        return own
    return _like_own(MAKERS[family](own, rng), own)


def perturb(module: torch.nn.Module, rng: torch.Generator) -> None:
    """Move every parameter and floating buffer away from its initial value, in place.

    A gain of 1 and a bias of 0 do nothing, so a candidate without them would pass; now it does not. What is nowhere
    negative, as a variance, stays so.
    """
    with torch.no_grad():
        for value in list(module.parameters()) + [one for one in module.buffers() if floating(one)]:
            if value.numel() == 0 or not floating(value):
                continue
            noise = torch.rand(value.shape, generator=rng, device=value.device).to(value.dtype)
            if value.is_complex() or bool((value < 0).any()):
                value.mul_(1 + 0.2 * (noise - 0.5))
            elif bool((value == 0).all()):
                value.add_(0.2 * (noise - 0.5))
            else:
                value.mul_(0.75 + 0.5 * noise)


def bits(tensor: Tensor) -> Tensor:
    """A contiguous tensor's bytes as integers of the widest kind that fits."""
    flat = tensor.reshape(-1).view(torch.uint8)
    for dtype in (torch.int32, torch.int16):
        if flat.numel() % dtype.itemsize == 0 and flat.storage_offset() % dtype.itemsize == 0:
            return flat.view(dtype)
    return flat


class Fingerprint:
    """A hash of tensors that nobody can keep while changing them: the multipliers are secret.

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
        """One int64 a tensor; stays on the device."""
        found = []
        for tensor in tensors:
            words, chunk = bits(tensor), CHUNK[tensor.device.type]
            if self._multipliers is None:
                self._multipliers = torch.randint(
                    -(1 << 62), 1 << 62, (chunk,), generator=self._rng, device=tensor.device, dtype=torch.int64
                )
            total = torch.zeros((), dtype=torch.int64, device=tensor.device)
            for index, start in enumerate(range(0, words.numel(), chunk)):
                part = words[start : start + chunk]
                total = total * 31 + (part * self._multipliers[: part.numel()]).sum() + index
            found.append(total)
        return torch.stack(found) if found else torch.zeros(0, dtype=torch.int64)


def seed_all(seed: int, device: torch.device) -> None:
    """As ``torch.manual_seed`` does, for the CPU and one device; that takes 0.7 ms, asking every kind of device.

    >>> seed_all(5, torch.device("cpu")); x = torch.rand(2); _ = torch.manual_seed(5); torch.equal(x, torch.rand(2))
    True
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def fill_random(memory: Tensor, rng: torch.Generator) -> None:
    """Bits that nobody can guess, in place of whatever was there. `memory` is of bytes."""
    words = memory.view(torch.int32) if memory.numel() % 4 == 0 else memory
    words.random_(generator=rng)


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor in a tree of lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in tensors_of(one)]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in tensors_of(one)]
    return []


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(one, change) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(one, change) for one in value)
    return value
