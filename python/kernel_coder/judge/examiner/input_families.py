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
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.wire.trees import floating

OUTLIER = 100.0
"""exp(100) is no float32: who forgets to subtract the maximum finds out."""

WHOLE = float(1 << 20)
"""Numbers beyond are not said to be whole, as all large ones are."""

SOME = 1000
"""Elements that most tensors show in what they are not."""

CHUNK = {"cuda": 1 << 22, "cpu": 1 << 14}
"""Words that a fingerprint takes at a time."""


def whole(own: Tensor) -> Tensor:
    """Whether floating-point numbers are all whole, and not all the same: indices, classes, a mask, signs. A bool, on
    their device.

    >>> [bool(whole(torch.tensor(one))) for one in ([0.0, 7.0], [-1.0, 1.0], [1.0, 1.0], [0.5, 1.0])]
    [True, True, False, False]
    """
    flat = own.reshape(-1)
    return _are_whole(flat).all() & (flat != flat[:1]).any()


def is_whole(own: Tensor) -> bool:
    """The same of any tensor, where most that are not are known for it by their first numbers. Integers are not meant.

    >>> is_whole(torch.tensor([0.0, 7.0])), is_whole(torch.tensor([0, 7]))
    (True, False)
    """
    return own.is_floating_point() and bool(_are_whole(own.reshape(-1)[:SOME]).all()) and bool(whole(own))


def _are_whole(some: Tensor) -> Tensor:
    return (some == some.round()) & (some.abs() <= WHOLE)


def _are_sorted(some: Tensor) -> Tensor:
    """Neighbours along the last dimension."""
    return some[..., 1:] >= some[..., :-1]


class Pattern(NamedTuple):
    """What the numbers of an input have in common."""

    is_whole: bool
    is_sorted: bool
    """Along the last dimension, and not constant there."""

    is_symmetric: bool
    is_sparse: bool
    """Zeros have their places."""


def pattern_of(own: Tensor) -> Pattern:
    """Of floating-point or complex numbers. One transfer from the device is enough for most, whose first numbers show
    what they are not.

    >>> pattern_of(torch.tril(torch.full((3, 3), 0.5)))
    Pattern(is_whole=False, is_sorted=False, is_symmetric=False, is_sparse=True)
    >>> pattern_of(torch.tensor([[0.5, 0.7], [0.7, 0.1]])).is_symmetric, pattern_of(torch.arange(9) / 2 + 1).is_sorted
    (True, True)
    """
    looked = {"sparse": (own == 0).sum() > 0.05 * own.numel()}
    if own.is_floating_point():
        looked["whole"] = _are_whole(own.reshape(-1)[:SOME]).all()
    if own.dim() and own.shape[-1] > 2 and not own.is_complex():
        looked["sorted"] = _are_sorted(own.reshape(-1, own.shape[-1])[0, :SOME]).all()
    if own.dim() >= 2 and own.shape[-1] == own.shape[-2] > 1:
        one = own.reshape(-1, *own.shape[-2:])[0]
        looked["symmetric"] = (one[0, :SOME] == one[:SOME, 0]).all()
    may_be = dict(zip(looked, torch.stack(list(looked.values())).tolist(), strict=True))
    return Pattern(
        is_whole=may_be.get("whole", False) and bool(whole(own)),
        is_sorted=may_be.get("sorted", False) and bool(_are_sorted(own).all() & (own[..., 0] < own[..., -1]).any()),
        is_symmetric=may_be.get("symmetric", False) and torch.equal(own, own.transpose(-1, -2)),
        is_sparse=may_be["sparse"],
    )


def _like_own(new: Tensor, own: Tensor, pattern: Pattern) -> Tensor:
    """The new numbers with the pattern that the task's own have."""
    if pattern.is_sorted:
        new = new.sort(dim=-1).values
    if pattern.is_symmetric:
        new = (new + new.transpose(-1, -2)) / 2
    if pattern.is_sparse:
        new.masked_fill_(own == 0, 0)
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
    if family == "own" or not floating(own) or own.numel() == 0:
        return own
    pattern = pattern_of(own)
    return own if pattern.is_whole else _like_own(MAKERS[family](own, rng), own, pattern)


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
            total: Tensor | None = None
            for index, start in enumerate(range(0, words.numel(), chunk)):
                part = words[start : start + chunk]
                of_part = (part * self._multipliers[: part.numel()]).sum()
                total = of_part if total is None else total * 31 + of_part + index
            if total is None:
                total = torch.zeros((), dtype=torch.int64, device=tensor.device)
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
