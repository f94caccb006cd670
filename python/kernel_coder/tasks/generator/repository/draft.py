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

from kernel_coder.tasks.generator.pointwise import UnsuitableError

Pair = tuple[Any, Any]
"""A value in the real reference, and the corresponding one in the small reference."""

NO_DEFAULT = object()
HEADER = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
INDENT = "    "


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


@dataclass(slots=True)
class Kernel:
    """A kernel and its launch. Pointwise operations join it between `head` and `tail` as lines on `value`.

    Attributes:
        name: of the kernel.
        thought: description of what one program does, for the sentence of thinking.
        pointers: the kernel's name of a tensor, and what ``forward`` passes.
        scalars: the same for numbers.
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
        values = [value for _, value in (*self.pointers, *self.scalars)]
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

    # ---- the reference

    def reference(self, side: int) -> str:
        """Return the reference's text with real constants (0) or small ones (1)."""
        return Writer(self, Random(self.text_seed)).text(side)

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
                part += f", then applies {_listed(kernel.fused)} before it stores"
            parts.append(
                part
                if number == 0
                else f"a {('second', 'third', 'fourth', 'fifth')[min(number - 1, 3)]} kernel: {part}"
            )
        text = "; ".join(parts)
        return text[:1].upper() + text[1:] + "."


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ---- writing the reference

OPENINGS_ONE = (
    "A module that computes {}.",
    "Applies {} to its input.",
    "{} as a layer of its own.",
    "Thin wrapper around {}.",
    "Computes {}.",
    "This model performs {}.",
    "Module for {}.",
)
OPENINGS_MANY = (
    "A block that performs {}.",
    "Computes {}.",
    "This model performs {}.",
    "Sequence of {}.",
    "Small network block: {}.",
    "Applies {}.",
)
RETURNS = ("Output tensor.", "The result.", "Tensor with the result.", "torch.Tensor: the output.")


class Writer:
    """Writes a draft's reference. The same random numbers give both sides the same text."""

    def __init__(self, draft: Draft, rng: Random) -> None:
        self.draft, self.rng = draft, rng
        choose = rng.random
        self.has_class_doc = choose() < 0.75
        self.has_init_doc = choose() < 0.4
        self.has_forward_doc = choose() < 0.55
        self.is_typed = choose() < 0.6
        self.is_init_typed = choose() < 0.65
        self.is_old_super = choose() < 0.5
        self.is_nested = choose() < 0.35
        self.has_comments = choose() < 0.3
        self.constants_first = choose() < 0.12
        self.inline = choose() < 0.12  # sizes are written as numbers
        self.is_doubled = choose() < 0.08
        self.in_variables = choose() < 0.4
        self.bulleted = choose() < 0.25
        self.heading = rng.choice(("", "", "", "# Test code", "# Sizes", "# Configuration", "# Example inputs"))
        opening = rng.choice(OPENINGS_ONE if len(draft.phrases) == 1 else OPENINGS_MANY)
        what = _listed(draft.phrases)
        self.summary = opening.format(what)
        self.summary = self.summary[:1].upper() + self.summary[1:]
        self.returns = rng.choice(RETURNS)
        required = sum(each.is_required for each in draft.arguments)
        given = [each.value != (each.default, each.default) for each in draft.arguments]
        least = max([required, *(place + 1 for place, is_given in enumerate(given) if is_given)])
        self.given = rng.choice((least, least, rng.randint(least, len(draft.arguments))))
        self.note = rng.choice(("", "", "", "  # no arguments", "  # nothing to configure"))

    def text(self, side: int) -> str:
        """Return the reference with real sizes (0) or small ones (1)."""
        head = "import torch\nimport torch.nn as nn\n"
        body = self._class()
        if re.search(r"\bF\.", body):
            head += "import torch.nn.functional as F\n"
        if "math." in body:
            head += "import math\n"
        constants = self._constants(side)
        helpers = self._helpers(side)
        parts = [head, constants, body, helpers] if self.constants_first else [head, body, constants, helpers]
        return "\n".join(part for part in parts if part)

    def _class(self) -> str:
        draft, name = self.draft, self.draft.entry_point
        lines = [f"class {name}(nn.Module):"]
        if self.has_class_doc:
            lines += _docstring(self._class_doc(), INDENT)
        annotated = [f"{each.name}: {each.annotation}" if self.is_init_typed else each.name for each in draft.arguments]
        arguments = "".join(
            f", {text}" if each.is_required else f", {text}{' = ' if self.is_init_typed else '='}{each.default!r}"
            for text, each in zip(annotated, draft.arguments, strict=True)
        )
        lines.append(f"    def __init__(self{arguments}):")
        if self.has_init_doc and draft.arguments:
            lines += _docstring(["Creates the layer.", "", *self._argument_docs()], INDENT * 2)
        parent = f"super({name}, self)" if self.is_old_super else "super()"
        lines.append(f"        {parent}.__init__()")
        lines += [INDENT * 2 + line for line, is_shown, _ in draft.init if is_shown]
        lines.append("")
        names = [each.name + (": torch.Tensor" if self.is_typed else "") for each in draft.inputs]
        arrow = " -> torch.Tensor" if self.is_typed else ""
        lines.append(f"    def forward(self, {', '.join(names)}){arrow}:")
        if self.has_forward_doc:
            docs = [
                f"    {each.name} (torch.Tensor): {each.doc} of shape ({', '.join(each.dims)})."
                for each in draft.inputs
            ]
            lines += _docstring(["Args:", *docs, "", "Returns:", f"    {self.returns}"], INDENT * 2)
        lines += [INDENT * 2 + line for line in self._forward()]
        return "\n".join(lines) + "\n"

    def _class_doc(self) -> list[str]:
        draft = self.draft
        if self.bulleted and len(draft.phrases) > 1:
            lines = ["Performs these operations in order:", *[f"    - {phrase}" for phrase in draft.phrases]]
        else:
            lines = [self.summary]
        if draft.arguments and not self.has_init_doc and self.rng.random() < 0.5:
            lines += ["", *self._argument_docs()]
        return lines

    def _argument_docs(self) -> list[str]:
        lines = ["Args:"]
        for each in self.draft.arguments:
            optional = "" if each.is_required else ", optional"
            default = "" if each.is_required else f" Defaults to {each.default}."
            lines.append(f"    {each.name} ({each.annotation}{optional}): {each.doc}.{default}")
        return lines

    def _forward(self) -> list[str]:
        draft = self.draft
        steps = draft.steps
        first = draft.inputs[0].name
        if not steps:
            raise UnsuitableError("the draft has no steps")
        assigned = [step for step in steps if not step.startswith("=")]
        if len(steps) == 1 and "\n" not in steps[0]:
            return [f"return {steps[0].format(x=first)}"]
        if self.is_nested and len(steps) <= 3 and len(assigned) == len(steps):
            text = first
            for step in steps:
                if (step.count("{x}") > 1 or not step.replace("{x}", "").strip()) and not text.isidentifier():
                    text = ""
                    break
                if "\n" in step or (" " in text and not _is_atom(text) and not _in_call(step)):
                    text = ""
                    break
                text = step.format(x=text)
            if text and len(text) < 100:
                return [f"return {text}"]
        name = first if len(draft.inputs) == 1 or self.rng.random() < 0.7 else "out"
        lines, value = [], first
        for number, step in enumerate(steps):
            if step.startswith("="):  # keeps a value under another name
                lines.append(f"{step[1:]} = {value}")
                continue
            text = step.format(x=value)
            *earlier, last = text.split("\n")
            lines += earlier
            is_last = number == len(steps) - 1
            if is_last and self.rng.random() < 0.5:
                lines.append(f"return {last}")
                return lines
            lines.append(f"{name} = {last}")
            value = name
        lines.append(f"return {value}")
        return lines

    def _constants(self, side: int) -> str:
        if self.inline:
            return ""
        lines = [f"{name} = {self._number(value, side)}" for name, value in self.draft.constants.items()]
        given = self.draft.arguments[: self.given]
        lines += [
            f"{each.name} = {each.text or repr(each.value[side])}"
            for each in given
            if each.name not in self.draft.constants
        ]
        if self.heading:
            lines.insert(0, self.heading)
        return "\n".join(lines) + "\n" if lines else ""

    def _number(self, value: Pair, side: int) -> str:
        """Return a constant's value, in some modules as a product."""
        if self.is_doubled and all(isinstance(each, int) and each % 2 == 0 for each in value):
            return f"{value[side] // 2} * 2"
        return repr(value[side])

    def _helpers(self, side: int) -> str:
        draft = self.draft
        values = {name: repr(value[side]) for name, value in draft.constants.items()}
        values |= {each.name: repr(each.value[side]) for each in draft.arguments}

        def named(text: str) -> str:
            if not self.inline:
                return text
            return re.sub(r"[A-Za-z_]\w*", lambda found: values.get(found[0], found[0]), text)

        made = []
        for each in draft.inputs:
            shape = ", ".join(named(dim) for dim in each.dims)
            made.append((each.name, named(each.make).format(shape=shape)))
        lines = ["def get_inputs():"]
        if self.in_variables:
            lines += [f"    {name} = {text}" for name, text in made]
            lines.append(f"    return [{', '.join(name for name, _ in made)}]")
        else:
            lines.append(f"    return [{', '.join(text for _, text in made)}]")
        given = ", ".join(named(each.name) for each in draft.arguments[: self.given])
        note = "" if given else self.note
        lines += ["", "def get_init_inputs():", f"    return [{given}]{note}"]
        return "\n".join(lines) + "\n"


def _docstring(lines: Sequence[str], indent: str) -> list[str]:
    if len(lines) == 1:
        return [f'{indent}"""{lines[0]}"""']
    return [f'{indent}"""', *(indent + line if line else "" for line in lines), f'{indent}"""']


def _is_atom(text: str) -> bool:
    """Return whether the text is a name, or one call, so that an operator may follow it."""
    if text.isidentifier():
        return True
    found = re.match(r"[\w.]+\(", text)
    if not found or not text.endswith(")"):
        return False
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter == ")" and place < len(text) - 1:
            return False
    return True


def _in_call(step: str) -> bool:
    """Return whether the operand of the step stands alone as an argument of a call."""
    return re.search(r"[(,] ?\{x\}[,)]", step) is not None
