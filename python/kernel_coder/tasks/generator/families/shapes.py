"""Shapes that inputs take: small, rarely a power of two, named as in KernelBench."""

from __future__ import annotations

from random import Random

from kernel_coder.tasks.generator.sketch import Sketch

_LENGTHS = (24, 33, 40, 48, 50, 63, 64, 70, 77, 96, 100, 113, 128, 150, 200)
_SHORT = (5, 7, 8, 10, 12, 16, 20, 24, 31, 32)


def any_shape(sketch: Sketch) -> list[str]:
    """Return one to four dimensions."""
    rng = sketch.rng
    rank = rng.choice((1, 2, 2, 2, 3, 3, 4))
    if rank == 1:
        return [sketch.size("length", rng.choice((300, 777, 1000, 1500, 2049, 3000)))]
    if rank == 2:
        return [sketch.size("batch_size", rng.choice((4, 6, 8, 12, 16))), sketch.size("features", rng.choice(_LENGTHS))]
    if rank == 3:
        return _three(sketch, rng)
    return image(sketch)


def rows_shape(sketch: Sketch, rank: int | None = None) -> list[str]:
    """Return two or three dimensions with at most about twenty rows."""
    rng = sketch.rng
    rank = rank or rng.choice((2, 2, 3))
    if rank == 2:
        rows = [sketch.size("batch_size", rng.choice((3, 4, 5, 6, 7, 8)))]
    else:
        rows = [sketch.size("batch_size", 2), sketch.size("seq_len", rng.choice((2, 3, 4)))]
    return [*rows, sketch.size(rng.choice(("features", "dim", "hidden_size")), rng.choice(_LENGTHS))]


def columns_shape(sketch: Sketch, batched: bool) -> list[str]:
    """Return the shapes to be worked on along their first dimension, or along the second where there is a batch."""
    rng = sketch.rng
    if not batched:
        return [sketch.size("batch_size", rng.choice(_SHORT)), sketch.size("features", rng.choice(_LENGTHS))]
    if rng.random() < 0.4:
        return image(sketch)
    return _three(sketch, rng)


def image(sketch: Sketch) -> list[str]:
    rng = sketch.rng
    return [
        sketch.size("batch_size", rng.choice((1, 2, 3))),
        sketch.size("channels", rng.choice((2, 3, 4, 6))),
        sketch.size("height", rng.choice((5, 7, 8, 10))),
        sketch.size("width", rng.choice((6, 8, 9, 12))),
    ]


def _three(sketch: Sketch, rng: Random) -> list[str]:
    return [
        sketch.size("batch_size", rng.choice((2, 3, 4))),
        sketch.size("seq_len", rng.choice((5, 7, 10, 12, 16))),
        sketch.size("features", rng.choice((16, 20, 30, 32, 45, 50))),
    ]
