"""Sizes, from tiny to gigabytes, each with a small and odd twin for Triton's interpreter."""

from __future__ import annotations

from random import Random

from kernel_coder.tasks.generator.repository.draft import Draft

NAMES = {
    1: (("n",), ("length",), ("size",)),
    2: (
        ("batch_size", "dim"),
        ("batch_size", "num_features"),
        ("rows", "cols"),
        ("N", "D"),
        ("batch_size", "hidden_size"),
    ),
    3: (
        ("batch_size", "seq_len", "hidden_size"),
        ("batch_size", "dim1", "dim2"),
        ("B", "T", "C"),
        ("batch", "channels", "length"),
    ),
    4: (
        ("batch_size", "features", "dim1", "dim2"),
        ("batch_size", "channels", "height", "width"),
        ("n", "c", "h", "w"),
    ),
}

LARGE = (
    16,
    24,
    32,
    48,
    64,
    96,
    100,
    112,
    128,
    160,
    192,
    200,
    255,
    256,
    320,
    384,
    512,
    640,
    768,
    1000,
    1024,
    1536,
    2048,
    4095,
    4096,
    8192,
    16384,
)
SMALL_SIZES = (3, 4, 5, 6, 7, 9, 10, 13)
"""Sizes of the small twin. Most are no powers of two, so that a missing mask gives a wrong result."""

KINDS = ((1 << 10, 1 << 16, 0.25), (1 << 16, 1 << 22, 0.35), (1 << 22, 1 << 27, 0.32), (1 << 27, 1 << 30, 0.08))
"""Elements of a tensor: from, to, share of the modules. The largest takes 4 GiB."""

FLOPS = ((1e6, 1e8, 0.2), (1e8, 1e10, 0.4), (1e10, 3e11, 0.4))
"""Floating-point operations of a product or convolution: from, to, share."""


def _draw(rng: Random, kinds: tuple[tuple[float, float, float], ...]) -> float:
    low, high, _ = rng.choices(kinds, weights=[each[2] for each in kinds])[0]
    return float(low * (high / low) ** rng.random())


def elements(rng: Random) -> float:
    """Return a number of elements for a tensor."""
    return _draw(rng, KINDS)


def budget(rng: Random) -> float:
    """Return a number of floating-point operations."""
    return _draw(rng, FLOPS)


def large(rng: Random, most: float, least: int = 1) -> int:
    """Return a size of :data:`LARGE` between the two bounds, or a slightly smaller one."""
    fitting = [each for each in LARGE if least <= each <= most]
    if not fitting:
        return max(least, int(most))
    value = rng.choice(fitting[-8:])
    return value if rng.random() < 0.85 else max(least, value - rng.randrange(1, 9))


def small(rng: Random) -> int:
    """Return a size of the small twin."""
    return rng.choice(SMALL_SIZES)


def shape(draft: Draft, count: float, ndim: int | None = None) -> tuple[str, ...]:
    """Return the names of new constants for a tensor of about `count` elements."""
    rng = draft.rng
    ndim = ndim or rng.choices((1, 2, 3, 4), weights=(1, 6, 3, 2))[0]
    names = rng.choice(NAMES[ndim])
    values: list[int] = []
    left = count
    for place in range(ndim - 1, 0, -1):
        value = large(
            rng, max(4.0, left ** (1.0 if place == 1 and ndim == 2 and rng.random() < 0.3 else 1 / (place + 0.7))), 2
        )
        values.insert(0, value)
        left = max(left / value, 1.0)
    values.insert(0, max(1, int(left)) if ndim == 1 else large(rng, left))
    return tuple(draft.size(name, value, small(rng)) for name, value in zip(names, values, strict=True))


def length(rng: Random, count: float, least: int = 8) -> int:
    """Return an extent such that a product of this many stays near `count`."""
    return large(rng, max(count, least), least)
