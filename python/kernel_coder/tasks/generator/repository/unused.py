"""Adds what real modules have and nothing reads: arguments of ``__init__``, attributes, sizes.

An answer has to repeat a constructor whatever its arguments mean. A model that has only seen arguments that matter
guesses the constructor from the operation.
"""

from __future__ import annotations

from typing import Any

from kernel_coder.tasks.generator.repository.draft import NO_DEFAULT, Draft

ARGUMENTS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("num_classes", "int", (10, 100, 1000)),
    ("eps", "float", (1e-05, 1e-06)),
    ("bias", "bool", (False, True)),
    ("groups", "int", (1, 4, 8)),
    ("dropout", "float", (0.0, 0.1, 0.5)),
    ("dim", "int", (1, -1)),
    ("alpha", "float", (1.0, 0.5)),
    ("momentum", "float", (0.1, 0.01)),
    ("scale", "float", (1.0, 2.0)),
    ("num_heads", "int", (4, 8)),
    ("inplace", "bool", (False,)),
    ("reduction", "str", ("mean", "sum")),
    ("mode", "str", ("default", "fast")),
    ("verbose", "bool", (False,)),
    ("max_len", "int", (512, 1024)),
    ("beta", "float", (1.0, 0.9)),
)


def add_unused(draft: Draft) -> None:
    """Add arguments and sizes that nothing reads to some modules."""
    rng = draft.rng
    if rng.random() < (0.15 if draft.arguments else 0.4):
        for _ in range(rng.choice((1, 1, 2))):
            _argument(draft)
    if rng.random() < 0.12:
        name, _, values = rng.choice(ARGUMENTS)
        if name not in draft.taken:
            value = rng.choice(values)
            draft.size(name, value, value)


def _argument(draft: Draft) -> None:
    rng = draft.rng
    sizes = [name for name in draft.constants if all(each.name != name for each in draft.arguments)]
    inputs = {each.name for each in draft.inputs}
    if sizes and rng.random() < 0.4:
        name = rng.choice(sizes)
        draft.argument(name, draft.constants[name])
    else:
        name, annotation, values = rng.choice(ARGUMENTS)
        if name in draft.taken or name in inputs or any(f"self.{name} " in line for line, _, _ in draft.init):
            return
        value = rng.choice(values)
        default = NO_DEFAULT if rng.random() < 0.4 else rng.choice((value, value, values[0]))
        draft.argument(name, (value, value), annotation, default)
    if rng.random() < 0.3:  # anywhere among the arguments that are required, or among the optional ones
        _move(draft)
    if rng.random() < 0.5 and all(f"self.{name} " not in line for line, _, _ in draft.init):
        draft.line(f"self.{name} = {name}", is_kept=False)


def _move(draft: Draft) -> None:
    """Move the newest required argument forward."""
    required = sum(each.is_required for each in draft.arguments)
    if required > 1:
        last = draft.arguments.pop(required - 1)
        draft.arguments.insert(draft.rng.randrange(required), last)
