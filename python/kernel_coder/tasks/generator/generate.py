"""Makes a task from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from kernel_coder.tasks.generator.families import ALL_FAMILIES, FAMILIES
from kernel_coder.tasks.generator.pointwise import UnsuitableError
from kernel_coder.tasks.generator.sketch import Sketch
from kernel_coder.tasks.generator.split import Split, split_of_composition
from kernel_coder.tasks.task import Task

VERSION = 1
"""Version of the generator, to be increased when a change gives another task for the same seed."""

LEVELS = (0, 1, 2, 3, 4)
LICENCE = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """A task with its solution and the three arguments that give it again."""

    task: Task
    seed: int
    family: str
    level: int
    composition: tuple[str, ...]

    @property
    def split(self) -> Split:
        return split_of_composition(self.family, self.composition)


def generate(seed: int, family: str | None = None, level: int | None = None) -> GeneratedTask:
    """Return the task of this seed; the same arguments give the same text in every process and on every machine.

    Args:
        seed: any integer.
        family: one of :data:`ALL_FAMILIES`; None lets the seed choose one of :data:`FAMILIES`.
        level: difficulty from 0 (two operations) to 4; None lets the seed choose.

    Raises:
        ValueError: an unknown family or level.

    >>> made = generate(7, "softmax", 1)
    >>> made == generate(7, "softmax", 1), made.task.entry_point, len(made.composition) >= 2
    (True, 'Model', True)
    """
    first = Random(f"kernel-coder {VERSION} {seed}")
    drawn = first.choice(list(FAMILIES)), first.choice(LEVELS)
    family = drawn[0] if family is None else family
    level = drawn[1] if level is None else level
    if family not in ALL_FAMILIES:
        raise ValueError(f"family must be one of {', '.join(ALL_FAMILIES)}; got {family!r}")
    if level not in LEVELS:
        raise ValueError(f"level must be an integer from 0 to 4; got {level!r}")
    for attempt in range(100):
        sketch = Sketch(Random(f"kernel-coder {VERSION} {seed} {family} {level} {attempt}"), level)
        try:
            ALL_FAMILIES[family](sketch)
        except UnsuitableError:
            continue
        if len(sketch.ops) >= 2 or sketch.texts is not None:  # single operations are KernelBench's first level
            return _finished(sketch, seed, family, level)
    raise RuntimeError(f"no {family} of level {level} came of seed {seed} in 100 attempts")


def _finished(sketch: Sketch, seed: int, family: str, level: int) -> GeneratedTask:
    reference, solution = sketch.reference(), sketch.solution()
    composition = tuple(sketch.ops)
    uuid = int(hashlib.sha256(reference.encode()).hexdigest()[:12], 16)
    metadata = {
        "family": family,
        "level": level,
        "composition": composition,
        "split": split_of_composition(family, composition),
        "seed": seed,
        "generator": VERSION,
        **sketch.more,
    }
    task = Task(
        id=f"{sketch.entry_point}/{uuid}",
        source=f"generator v{VERSION}",
        reference=reference,
        solution=solution,
        entry_point=sketch.entry_point,
        licence=LICENCE,
        metadata=metadata,
    )
    return GeneratedTask(task, seed, family, level, composition)


def generate_many(
    seed: int = 0, families: tuple[str, ...] | None = None, levels: tuple[int, ...] | None = None
) -> Iterator[GeneratedTask]:
    """Yield tasks without end, with families and levels in turn, so that every part of the stream is balanced.

    >>> from itertools import islice
    >>> [made.family for made in islice(generate_many(families=("softmax", "loss")), 4)]
    ['softmax', 'loss', 'softmax', 'loss']
    """
    families = tuple(FAMILIES) if families is None else families
    levels = LEVELS if levels is None else levels
    number = seed * 2**40
    while True:
        for level in levels:
            for family in families:
                yield generate(number, family, level)
                number += 1


def split_of(task: Task | GeneratedTask) -> Split:
    """Return the split to which a generated task belongs; see `kernel_coder.tasks.generator.split`.

    Raises:
        ValueError: the task has no family and composition, so it was not generated here.
    """
    if isinstance(task, GeneratedTask):
        return task.split
    family, composition = task.metadata.get("family"), task.metadata.get("composition")
    if not family or not composition:
        raise ValueError(f"task {task.id} has no family and composition in its metadata: it is not a generated task")
    return split_of_composition(family, composition)
