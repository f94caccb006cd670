"""A MAP-Elites archive (Mouret and Clune 2015): the best answer of each kind, for the search ``evolve``.

Every answer with code has a cell, a tuple with one value for each axis; the archive keeps the best answer of each cell.
It is a function of the judged answers, so a resumed search has the archive of the search that was stopped. pyribs has
archives for vectors of numbers, but would add scikit-learn and scipy as dependencies; here a dict is enough.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from kernel_coder.judge.verdict import rank
from kernel_coder.ops import sequence_similarities
from kernel_coder.refine.trajectory import Attempt, Key
from kernel_coder.tasks.task import parse

SPEEDUPS = (0.5, 1.0, 1.5, 2.0, 4.0)
"""Limits between the values of the axis ``speedup``, the reference's time divided by the kernel's."""

MAX_KERNELS = 4
"""Largest value of the axis ``kernels``; more kernels count as this number."""

NEIGHBOURS = 3
"""Number of nearest answers in the archive whose mean distance is the novelty of an answer."""

COMPARED = 4000
"""Upper limit, in characters, for the part of a source that novelty compares, about a hundred lines, because the
comparison takes quadratic time."""


def cell_of(attempt: Attempt, axes: Sequence[str]) -> tuple[str, ...]:
    """Return the cell of an answer with code: one value for each axis.

    ``speedup``: its range, or the outcome of an answer that is not correct. ``memory``: how the kernels reach memory.
    ``tile``: the largest block size, as a power of two. ``kernels``: the number of kernels.
    """
    code = attempt.code or ""
    values = {"speedup": _speedup, "memory": lambda one: memory_access(code)}
    values |= {"tile": lambda one: tile(code), "kernels": lambda one: number_of_kernels(code)}
    return tuple(values[axis](attempt) for axis in axes)


def _speedup(attempt: Attempt) -> str:
    verdict = attempt.verdict
    if verdict is None or not verdict.correct:
        return "not judged" if verdict is None else verdict.outcome.value
    if verdict.speedup is None:
        return "untimed"
    low = max((bound for bound in SPEEDUPS if bound <= verdict.speedup), default=0.0)
    high = next((f" to {high:g}" for one, high in pairwise((0.0, *SPEEDUPS)) if one == low), "")
    return f"{low:g}{high}x" if high else f"{low:g}x or more"


def memory_access(code: str) -> str:
    """Return the way in which the kernels of a source access memory; if there are several, the most elaborate one.

    >>> memory_access("tl.load(x + offsets)"), memory_access("tl.load(x + i[:, None] * n + j[None, :])")
    ('vector', 'matrix')
    >>> memory_access("tl.make_block_ptr(x)"), memory_access("x = 1")
    ('block pointers', 'none')
    """
    kinds = (
        ("atomics", r"\btl\.atomic_|\batomicAdd\b"),
        ("tensor cores", r"\btl\.dot(?:_scaled)?\(|\bwmma::|\bmma\.sync\b"),
        ("block pointers", r"\bmake_block_ptr\b|\bmake_tensor_descriptor\b"),
        ("shared memory", r"\b__shared__\b"),
        ("matrix", r"\[\s*:\s*,\s*None\s*\]|\[\s*None\s*,\s*:\s*\]"),
        ("loop of vectors", r"\bfor\b[^\n]*\brange\(.*?\btl\.load\("),
        ("vector", r"\btl\.load\(|\bfloat[24]\b"),
        ("scalar", r"\b__global__\b"),
    )
    return next((name for name, pattern in kinds if re.search(pattern, code, re.DOTALL)), "none")


def tile(code: str) -> str:
    """Return the largest block size in a source, a power of two from 16 to 65,536; ``none`` if there is none.

    >>> tile("BLOCK = 256\\nx = 1000")
    '256'
    """
    found = [int(number) for number in re.findall(r"(?<![\w.])\d{2,5}(?![\w.])", code)]
    sizes = [number for number in found if 16 <= number <= 65536 and number & (number - 1) == 0]
    return str(max(sizes)) if sizes else "none"


def number_of_kernels(code: str) -> str:
    """Return the number of Triton or CUDA kernels that a source defines, up to ``4+``.

    >>> number_of_kernels("@triton.jit\\ndef f(x): ...\\n@triton.jit\\ndef g(x): ...")
    '2'
    """
    tree = parse(code)
    triton = 0
    if not isinstance(tree, str):
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        triton = sum(any("jit" in ast.unparse(one) for one in node.decorator_list) for node in functions)
    count = triton + code.count("__global__")
    return str(count) if count < MAX_KERNELS else f"{MAX_KERNELS}+"


@dataclass(slots=True)
class Archive:
    """The best answer of each cell. Of equally good answers the first one is kept."""

    axes: tuple[str, ...]
    cells: dict[tuple[str, ...], Attempt] = field(default_factory=dict)

    @classmethod
    def of(cls, attempts: Iterable[Attempt], axes: Sequence[str]) -> Archive:
        """Return the archive of the judged answers that hold code."""
        archive = cls(tuple(axes))
        for attempt in attempts:
            archive.add(attempt)
        return archive

    def add(self, attempt: Attempt) -> bool:
        """Add an answer. Return whether it is now the best one of its cell."""
        if attempt.code is None or not attempt.is_judged:
            return False
        cell = cell_of(attempt, self.axes)
        known = self.cells.get(cell)
        if known is not None and rank(known.verdict) >= rank(attempt.verdict):
            return False
        self.cells[cell] = attempt
        return True

    @property
    def elites(self) -> list[Attempt]:
        """The best answers of the cells, the best one first."""
        return sorted(self.cells.values(), key=lambda one: (*(-part for part in rank(one.verdict)), one.key))

    def novelties(self) -> dict[Key, float]:
        """Return the mean distance of each elite to its nearest others, from 0 to 1. A distance is 1 - ``difflib``'s
        ratio."""
        elites = self.elites
        texts = [(one.code or "")[:COMPARED] for one in elites]
        pairs = [(i, j) for i in range(len(elites)) for j in range(i)]
        if not pairs:
            return {one.key: 1.0 for one in elites}
        ratios = sequence_similarities([texts[i] for i, _ in pairs], [texts[j] for _, j in pairs]).tolist()
        distances: dict[int, list[float]] = {place: [] for place in range(len(elites))}
        for (i, j), ratio in zip(pairs, ratios, strict=True):
            distances[i].append(1 - ratio)
            distances[j].append(1 - ratio)
        nearest = {place: sorted(found)[:NEIGHBOURS] for place, found in distances.items()}
        return {elites[place].key: sum(found) / len(found) for place, found in nearest.items()}


def draw_parents(
    archive: Archive, count: int, random: Random, *, novelty: float, children: dict[Key, int]
) -> list[Attempt]:
    """Draws different parents from the archive; the best one of them comes last.

    Args:
        archive: the archive.
        count: highest number of parents.
        random: source of the random numbers.
        novelty: probability that a parent is drawn by its novelty instead of by its place in the order of fitness.
            The weight of an elite is its novelty over one plus its number of children, or 1/2, 1/4, 1/8, ... by place.
        children: for each answer the number of its children.
    """
    left = archive.elites
    novelties = archive.novelties() if novelty and len(left) > 1 else {}
    parents: list[Attempt] = []
    while left and len(parents) < count:
        if novelties and random.random() < novelty:
            weights = [1e-6 + novelties[one.key] / (1 + children.get(one.key, 0)) for one in left]
        else:
            weights = [math.ldexp(1.0, -place) for place in range(len(left))]
        parents.append(left.pop(random.choices(range(len(left)), weights)[0]))
    return sorted(parents, key=lambda one: (rank(one.verdict), tuple(-part for part in one.key)))
