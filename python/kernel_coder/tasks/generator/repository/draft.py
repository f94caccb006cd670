"""A module that is being written: the reference in the style of repositories, and its Triton solution.

Every size is a named constant with two values, a real one and a small one. The reference is written twice from the same
draft, with the same text and other constants: once for a GPU, once for Triton's interpreter. The solution contains no
constant, so one text serves both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Pair = tuple[Any, Any]
"""A value in the real reference, and the corresponding one in the small reference."""

NO_DEFAULT = object()
INDENT = "    "
HEADER = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"


@dataclass(slots=True)
class Argument:
    """One argument of ``__init__``."""

    name: str
    annotation: str
    value: Pair
    default: Any
    doc: str
    text: str = ""  # of the constant, in terms of other constants; empty: its value

    @property
    def is_required(self) -> bool:
        return self.default is NO_DEFAULT


@dataclass(slots=True)
class Input:
    """One argument of ``forward``, and how ``get_inputs`` makes it."""

    name: str
    dims: tuple[str, ...]
    make: str  # with {shape}
    doc: str
    after: str = ""  # a second line of ``get_inputs``, such as one that makes a matrix symmetric


@dataclass(slots=True)
class Kernel:
    """A kernel and its launch. Pointwise operations join it between `head` and `tail` as lines on `value`.

    Attributes:
        name: of the kernel.
        thought: description of what one program does, for the sentence of thinking.
        pointers: the kernel's name of a tensor, and what ``forward`` passes.
        scalars: the same for numbers. What is passed may be ``*tuple``; the tuple's other names then pass nothing.
        blocks: the same for ``tl.constexpr``.
        head: lines before the pointwise operations.
        value: the variable that these work on.
        offset: of `value` in a contiguous tensor of the output's shape.
        mask: of `offset`.
        channel: a load of one number for each channel, with ``{p}`` for the pointer; empty: no channel is known.
        tail: lines after the pointwise operations.
        setup: lines of ``forward`` before the launch.
        grid: of the launch.
        out: the variable of ``forward`` that holds the result.
        is_flat: the kernel only loads, computes and stores single elements.
    """

    name: str
    thought: str
    pointers: list[tuple[str, str]]
    scalars: list[tuple[str, str]]
    blocks: list[tuple[str, str]]
    head: list[str]
    value: str
    offset: str
    mask: str
    tail: list[str]
    setup: list[str]
    grid: str
    out: str
    channel: str = ""
    steps: list[str] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)
    is_flat: bool = False
    indent: str = ""  # of the steps

    def text(self) -> str:
        names = [name for name, _ in (*self.pointers, *self.scalars)]
        names += [f"{name}: tl.constexpr" for name, _ in self.blocks]
        lines = [*self.head, *(self.indent + step for step in self.steps), *self.tail]
        body = "\n".join(INDENT + line for line in lines)
        return f"@triton.jit\ndef {self.name}({', '.join(names)}):\n{body}\n"

    def launch(self) -> list[str]:
        values = [value for _, value in (*self.pointers, *self.scalars) if value]
        values += [f"{name}={value}" for name, value in self.blocks]
        return [*self.setup, f"grid = {self.grid}", f"{self.name}[grid]({', '.join(values)})"]


@dataclass(slots=True)
class Draft:
    """Collects the parts of both texts; :meth:`reference`, :meth:`solution` and :meth:`thinking` write them."""

    rng: Random
    text_seed: int = 0  # of the choices in the reference's wording
    entry_point: str = "Model"
    constants: dict[str, Pair] = field(default_factory=dict)
    arguments: list[Argument] = field(default_factory=list)
    init: list[tuple[str, bool, bool]] = field(default_factory=list)  # line; whether reference, solution have it
    inputs: list[Input] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)  # of the reference's forward, with {x} for the value so far
    kernels: list[Kernel] = field(default_factory=list)
    before: list[str] = field(default_factory=list)  # lines of the solution's forward before the first kernel
    closing: list[tuple[int, str]] = field(default_factory=list)  # lines after so many kernels
    result: str = ""  # what the solution returns, if it is not the last kernel's output
    ops: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)
    thought: str = ""
    shape: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of the value so far, real and small
    value: str = ""  # the solution's variable that holds the value so far
    taken: set[str] = field(default_factory=set)

    # ---- collecting

    def size(self, name: str, real: Any, small: Any) -> str:
        """Names a constant of the module; returns a free name."""
        name = self.free(name)
        self.constants[name] = (real, small)
        return name

    def free(self, name: str) -> str:
        """Return the name, with a number if it is taken."""
        candidate, number = name, 1
        while candidate in self.taken:
            number += 1
            candidate = f"{name}{number}" if not name.endswith("_ptr") else f"{name[:-4]}{number}_ptr"
        self.taken.add(candidate)
        return candidate

    def argument(
        self,
        name: str,
        value: Pair,
        annotation: str = "int",
        default: Any = NO_DEFAULT,
        doc: str = "",
        text: str = "",
    ) -> str:
        """Add an argument of ``__init__`` and return its name."""
        made = Argument(name, annotation, value, default, doc or name.replace("_", " ").capitalize(), text)
        optional = next((at for at, each in enumerate(self.arguments) if not each.is_required), len(self.arguments))
        self.taken.add(name)
        self.arguments.insert(optional if made.is_required else len(self.arguments), made)
        return name

    def line(self, text: str, *, is_kept: bool = True, is_shown: bool = True) -> None:
        """Add a line of ``__init__``: to the solution if `is_kept`, to the reference if `is_shown`."""
        self.init.append((text, is_shown, is_kept))

    def input(
        self, name: str, dims: Sequence[str], make: str = "", doc: str = "Input tensor", is_first: bool = False
    ) -> str:
        """Add an argument of ``forward``. Operations work on the first one."""
        make = make or self.rng.choice(("torch.rand({shape})", "torch.rand({shape})", "torch.randn({shape})"))
        self.inputs.append(Input(name, tuple(dims), make, doc))
        self.taken.add(name)
        if is_first:
            self.shape = self.both(lambda side: [self.constants[dim][side] for dim in dims])
            self.value = name
            self.before.append(f"{name} = {name}.contiguous()")
        return name

    @staticmethod
    def both(sizes: Callable[[int], Iterable[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of both sides."""
        return tuple(sizes(0)), tuple(sizes(1))

    def op(self, name: str, phrase: str) -> None:
        """Notes an operation for the composition and the docstrings."""
        self.ops.append(name)
        self.phrases.append(phrase)

    def open(self, kernel: Kernel) -> Kernel:
        """Adds a kernel; its output is the value so far."""
        kernel.name = self.free(kernel.name)
        self.kernels.append(kernel)
        self.value = kernel.out
        return kernel

    def variable(self) -> str:
        """Return a free variable for the next kernel's output."""
        return self.free(("out", "y", "z", "u", "v", "t")[min(len(self.kernels), 5)])

    def unfuse(self) -> list[str]:
        """Removes the last kernel if it only works on single elements without other tensors, and returns its lines."""
        if not self.kernels or not self.kernels[-1].is_flat or len(self.kernels[-1].pointers) > 2:
            return []
        if self.kernels[-1].scalars[1:]:
            return []
        kernel = self.kernels.pop()
        self.taken -= {kernel.name, kernel.out}
        self.value = kernel.pointers[0][1]
        return [re.sub(rf"\b{kernel.value}\b", "x", step) for step in kernel.steps]

    # ---- the solution

    def solution(self) -> str:
        """Return the solution's text."""
        kernels = "\n\n".join(kernel.text() for kernel in self.kernels)
        names = ", ".join(each.name for each in self.inputs)
        lines: list[str] = list(self.before)
        for number, kernel in enumerate(self.kernels, start=1):
            lines += kernel.launch()
            lines += [text for at, text in self.closing if at == number]
        lines.append(f"return {self.result or self.value}")
        forward = "\n".join(INDENT * 2 + line for line in lines)
        new = f"class ModelNew(nn.Module):\n{self._init()}    def forward(self, {names}):\n{forward}\n"
        return f"{HEADER}\n\n{kernels}\n\n{new}"

    def _init(self) -> str:
        lines = [line for line, _, is_kept in self.init if is_kept]
        if not self.arguments and not lines:
            return ""
        arguments = "".join(
            f", {each.name}" if each.is_required else f", {each.name}={each.default!r}" for each in self.arguments
        )
        body = "\n".join(INDENT * 2 + line for line in ("super().__init__()", *lines))
        return f"    def __init__(self{arguments}):\n{body}\n\n"

    def thinking(self) -> str:
        """Return one sentence on how the solution works."""
        if self.thought:
            return self.thought
        parts = []
        for number, kernel in enumerate(self.kernels):
            part = kernel.thought
            if kernel.fused:
                part += f", then applies {listed(kernel.fused)} before it stores"
            parts.append(
                part
                if number == 0
                else f"a {('second', 'third', 'fourth', 'fifth')[min(number - 1, 3)]} kernel: {part}"
            )
        text = "; ".join(parts)
        return text[:1].upper() + text[1:] + "."


def listed(words: Sequence[str]) -> str:
    """Return the words as a list in English."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
