"""Families of inputs that tell a right candidate from a nearly right one, and noise on parameters.

========== ============================================================================================================
own        what the task's ``get_inputs`` gives, with a fresh seed
normal     standard normal numbers
scaled     the task's own, times 10, with random signs
shifted    the task's own, plus 5
structured the task's own, with rows that are constant, rows that are zero, and a few elements of 100 or -100
tiny       the task's own, times 1e-4; times 1e-3 if the reference is inexact there
huge       the task's own, times 1e3, 1e4 or 1e5
offset     the task's own, each row plus or minus a number between 100 and 10,000
negative   the task's own, all negative and less than -1, each row times a number between 1 and 1e5
outlier    the task's own, with a single element of 10,000 or -10,000
ties       rows that equal the first one, and rows whose elements differ by about a hundredth
========== ============================================================================================================

To add a family: write a function that makes such an input from the task's own, add it to :data:`INPUT_FAMILIES`, and
name it in :data:`kernel_coder.judge.config.FAMILIES`.

Integers and bools stay the task's own. So do floating-point numbers that are all whole: they are indices, classes or
masks. A pattern of the task's own numbers is kept, since a solution may rely on it: zeros above or below a diagonal
stay zeros, a symmetric matrix stays symmetric, sorted rows stay sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kernel_coder.judge.wire.trees import floating, is_real

OUTLIER = 100.0
"""Magnitude of the outliers in structured inputs. exp(100) overflows float32, so a softmax that does not subtract the
maximum fails."""

LONE_OUTLIER = 1e4
"""Magnitude of the outlier of the family ``outlier``. It determines any scale that comes from the largest element."""

TIE_SPREAD = 0.01
"""Upper limit of the difference between two elements of a row of nearly equal numbers."""

LARGEST_WHOLE = float(1 << 20)
"""Numbers above this do not count as whole, because all large floating-point numbers are whole."""

FIRST_ELEMENTS = 1000
"""Number of elements that are looked at first. Most tensors without a pattern show there that they have none."""

# ---- patterns of a task's own inputs


def whole(own: Tensor) -> Tensor:
    """Return whether all floating-point numbers are whole and not all of them equal: indices, classes, a mask, signs.
    The result is a bool tensor on their device.

    >>> [bool(whole(torch.tensor(one))) for one in ([0.0, 7.0], [-1.0, 1.0], [1.0, 1.0], [0.5, 1.0])]
    [True, True, False, False]
    """
    flat = own.reshape(-1)
    return _are_whole(flat).all() & (flat != flat[:1]).any()


def is_whole(own: Tensor) -> bool:
    """Return the same as a Python bool, for a tensor of any dtype; False for integers. This is fast for most tensors
    that are not whole, since their first numbers show it.

    >>> is_whole(torch.tensor([0.0, 7.0])), is_whole(torch.tensor([0, 7]))
    (True, False)
    """
    return is_real(own) and bool(_are_whole(own.reshape(-1)[:FIRST_ELEMENTS]).all()) and bool(whole(own))


def _are_whole(some: Tensor) -> Tensor:
    return (some == some.round()) & (some.abs() <= LARGEST_WHOLE)


def _are_sorted(some: Tensor) -> Tensor:
    """Return, for each pair of neighbours along the last dimension, whether they are in order."""
    return some[..., 1:] >= some[..., :-1]


class Pattern(NamedTuple):
    """Properties of an input's numbers that its other families keep."""

    is_whole: bool
    is_sorted: bool
    """Whether the numbers are sorted along the last dimension, and not all equal there."""

    is_symmetric: bool
    is_sparse: bool
    """More than 5% of the elements are zero, so the zeros keep their places."""


def pattern_of(own: Tensor) -> Pattern:
    """Return the pattern of floating-point or complex numbers.

    Most tensors need one transfer from the device, since their first numbers show which patterns they do not have.

    >>> pattern_of(torch.tril(torch.full((3, 3), 0.5)))
    Pattern(is_whole=False, is_sorted=False, is_symmetric=False, is_sparse=True)
    >>> pattern_of(torch.tensor([[0.5, 0.7], [0.7, 0.1]])).is_symmetric, pattern_of(torch.arange(9) / 2 + 1).is_sorted
    (True, True)
    """
    glances = {"sparse": (own == 0).sum() > 0.05 * own.numel()}
    if is_real(own):
        glances["whole"] = _are_whole(own.reshape(-1)[:FIRST_ELEMENTS]).all()
    if own.dim() and own.shape[-1] > 2 and not own.is_complex():
        glances["sorted"] = _are_sorted(own.reshape(-1, own.shape[-1])[0, :FIRST_ELEMENTS]).all()
    if own.dim() >= 2 and own.shape[-1] == own.shape[-2] > 1:
        one = own.reshape(-1, *own.shape[-2:])[0]
        glances["symmetric"] = (one[0, :FIRST_ELEMENTS] == one[:FIRST_ELEMENTS, 0]).all()
    may_be = dict(zip(glances, torch.stack(list(glances.values())).tolist(), strict=True))
    return Pattern(
        is_whole=may_be.get("whole", False) and bool(whole(own)),
        is_sorted=may_be.get("sorted", False) and bool(_are_sorted(own).all() & (own[..., 0] < own[..., -1]).any()),
        is_symmetric=may_be.get("symmetric", False) and torch.equal(own, own.transpose(-1, -2)),
        is_sparse=may_be["sparse"],
    )


def _like_own(new: Tensor, own: Tensor, pattern: Pattern) -> Tensor:
    """Return the new numbers, changed to have the pattern of the task's own."""
    if pattern.is_sorted:
        new = new.sort(dim=-1).values
    if pattern.is_symmetric:
        new = (new + new.transpose(-1, -2)) / 2
    if pattern.is_sparse:
        new.masked_fill_(own == 0, 0)
    return new.to(own.dtype)


# ---- families


def _own(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    return own


def _normal(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    dtype = own.dtype if own.is_complex() else torch.float32
    return torch.randn(own.shape, generator=rng, device=own.device, dtype=dtype)


def _scaled(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    signs = torch.randint(0, 2, own.shape, generator=rng, device=own.device, dtype=torch.int8).mul_(2).sub_(1)
    return (own * signs).mul_(10)


def _shifted(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    return own + 5


def _structured(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    new = own.clone().reshape(-1, own.shape[-1]) if own.dim() else own.clone().reshape(1, 1)
    kinds = torch.rand(new.shape[0], generator=rng, device=own.device)[:, None]
    # All in place, since the input may be large.
    torch.where(kinds < 0.15, new[:, :1].clone(), new, out=new)  # constant rows
    new.masked_fill_((kinds >= 0.15) & (kinds < 0.25), 0)
    chance = torch.rand(new.shape, generator=rng, device=own.device)
    rate = min(0.5 / max(new.shape[-1], 1), 0.01)
    new.masked_fill_(chance < rate, OUTLIER)
    new = new.masked_fill_(chance > 1 - rate, -OUTLIER).reshape(-1)
    if len(new) > 1:  # at least one outlier of each sign, so that no wrong candidate passes by luck
        low, high = torch.randint(len(new), (2, 1), generator=rng, device=own.device)
        new.index_fill_(0, low, -OUTLIER).index_fill_(0, high, OUTLIER)
    return new.reshape(own.shape)


RANGE_FACTORS = (1.0, 0.6, 0.3, 0.0)
"""Factors on the range of row sizes in the families ``offset`` and ``negative``, and of the factors of ``huge``. If a
task fails with the first factor, the next one is tried: exp overflows at 100, where a softmax works at 100,000.
``tiny`` is not so small there."""


def _power(low: float, high: float, count: int, own: Tensor, rng: torch.Generator) -> Tensor:
    """Return a column of powers of ten in random order, whose exponents are evenly spaced from `low` to `high`."""
    exponents = torch.linspace(high, low, count, device=own.device)
    return 10 ** exponents[torch.randperm(count, generator=rng, device=own.device)][:, None]


def _rows(own: Tensor) -> Tensor:
    """Return the tensor as a matrix of its rows along the last dimension."""
    return own.reshape(-1, own.shape[-1]) if own.dim() else own.reshape(1, 1)


def _signs(shape: tuple[int, ...], own: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randint(0, 2, shape, generator=rng, device=own.device, dtype=torch.int8).mul_(2).sub_(1)


def _tiny(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    return own * (1e-4 if reach == RANGE_FACTORS[0] else 1e-3)


def _huge(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    return own * 10 ** (3 + reach * int(torch.randint(3, (1,), generator=rng, device=own.device)))


def _offset(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    rows = _rows(own)
    moved = _power(2.0, 2.0 + 2 * reach, len(rows), own, rng) * _signs((len(rows), 1), own, rng)
    return (rows + moved).reshape(own.shape)


def _negative(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    rows = _rows(own)
    return (_power(0.0, 5 * reach, len(rows), own, rng) * (-1 - rows.abs())).reshape(own.shape)


def _outlier(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    new = own.clone().reshape(-1)
    place = torch.randint(len(new), (1,), generator=rng, device=own.device)
    return new.index_fill_(0, place, LONE_OUTLIER * float(_signs((1,), own, rng))).reshape(own.shape)


def _ties(own: Tensor, rng: torch.Generator, reach: float) -> Tensor:
    rows = _rows(own)
    noise = torch.rand(rows.shape, generator=rng, device=own.device)
    near = rows[:, :1] + TIE_SPREAD * (noise - 0.5)
    is_equal = torch.rand(len(rows), 1, generator=rng, device=own.device) < 0.5
    if len(rows) == 1:  # a single row cannot equal another one
        return near.reshape(own.shape)
    return torch.where(is_equal, rows[:1], near).reshape(own.shape)


class InputFamily(NamedTuple):
    """One family of inputs."""

    description: str
    """Text after "Inputs: " in feedback."""

    make: Callable[[Tensor, torch.Generator, float], Tensor]
    """Makes an input of this family from one of the task's own, which has floating-point or complex numbers. The last
    argument is one of :data:`RANGE_FACTORS`."""


INPUT_FAMILIES = {
    "own": InputFamily("of the task's own kind", _own),
    "normal": InputFamily("standard normal", _normal),
    "scaled": InputFamily("the task's own times 10, with random signs", _scaled),
    "shifted": InputFamily("the task's own plus 5", _shifted),
    "structured": InputFamily("with constant rows, zero rows and a few elements of 100 and -100", _structured),
    "tiny": InputFamily("the task's own times 1e-3 or 1e-4", _tiny),
    "huge": InputFamily("the task's own times 1e3 to 1e5", _huge),
    "offset": InputFamily("the task's own, each row plus or minus 100 to 10,000", _offset),
    "negative": InputFamily("negative numbers only, each row times 1 to 1e5", _negative),
    "outlier": InputFamily("the task's own with a single element of 10,000 or -10,000", _outlier),
    "ties": InputFamily("with equal rows, and rows of nearly equal elements", _ties),
}
"""All families by name."""


def of_family(family: str, own: Tensor, rng: torch.Generator, reach: float = 1.0) -> Tensor:
    """Return an input of a family, made from one of the task's own.

    Args:
        family: name of the family.
        own: the task's own input.
        rng: generates the random numbers.
        reach: one of :data:`RANGE_FACTORS`.

    >>> rng = torch.Generator().manual_seed(0)
    >>> of_family("normal", torch.tril(torch.rand(2, 2)), rng)[0, 1], of_family("shifted", torch.ones(2), rng)
    (tensor(0.), tensor([6., 6.]))
    """
    if family == "own" or not floating(own) or own.numel() == 0:
        return own
    pattern = pattern_of(own)
    if own.is_complex() and family in ("negative", "ties"):
        return own
    return own if pattern.is_whole else _like_own(INPUT_FAMILIES[family].make(own, rng, reach), own, pattern)


# ---- parameters

NEGLIGIBLE = 0.01
"""A parameter whose elements are all equal and smaller than this gets new elements around 1. Such a parameter is the
factor of a whole branch of a module, which a candidate could otherwise leave out within any tolerance."""


def is_table(value: Tensor, again: Tensor) -> bool:
    """Return whether a buffer is a constant table, such as a mask or positions: the same in two constructions from
    different seeds, and not filled with a single value. A candidate need not have it.

    >>> mask, zeros = torch.tril(torch.ones(3, 3)), torch.zeros(3)
    >>> is_table(mask, mask), is_table(zeros, zeros), is_table(torch.rand(3), torch.rand(3))
    (True, False, False)
    """
    return value.numel() > 1 and torch.equal(value, again) and not bool((value == value.reshape(-1)[0]).all())


def perturb(module: torch.nn.Module, rng: torch.Generator, fixed: frozenset[str] = frozenset()) -> None:
    """Move every parameter and floating-point buffer away from its initial value, in place.

    A gain of 1 and a bias of 0 do nothing, so without this a candidate that leaves them out would pass. The zeros of
    parameters move too, so weights that are a diagonal or a band at first do not stay so. Values that are nowhere
    negative, such as variances, stay so. Buffers keep their zeros, unless they are all zero.

    Args:
        module: the module.
        rng: generates the noise.
        fixed: names of buffers that stay as they are.
    """
    parameters = {id(one) for one in module.parameters()}
    named = [*module.named_parameters(), *((name, one) for name, one in module.named_buffers() if name not in fixed)]
    with torch.no_grad():
        for _, value in named:
            if value.numel() == 0 or not floating(value):
                continue
            noise = torch.rand(value.shape, generator=rng, device=value.device).to(value.dtype)
            is_parameter = id(value) in parameters
            if is_parameter and not value.is_complex() and _is_negligible(value):
                value.copy_(0.75 + 0.5 * noise)
                continue
            moves = is_parameter and not value.is_complex() and bool((value == 0).any())
            size = 0.0 if not moves else float(value.float().square().mean().sqrt())
            zeros = value == 0 if size else None
            if value.is_complex() or bool((value < 0).any()):
                value.mul_(1 + 0.2 * (noise - 0.5))
                if zeros is not None:
                    value.add_(zeros * (0.4 * size * (noise - 0.5)))
            elif bool((value == 0).all()):
                value.add_(0.2 * (noise - 0.5))
            else:
                value.mul_(0.75 + 0.5 * noise)
                if zeros is not None:
                    value.add_(zeros * (0.2 * size * noise))


def _is_negligible(value: Tensor) -> bool:
    first = value.reshape(-1)[0]
    return bool((first != 0) & (first.abs() < NEGLIGIBLE) & (value == first).all())
