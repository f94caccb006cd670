"""Writes a draft's module in one of many styles: docstrings, annotations, variables, order of statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from random import Random
from typing import Any

from kernel_coder.tasks.generator.pointwise import UnsuitableError
from kernel_coder.tasks.generator.repository.draft import INDENT, Draft, listed
from kernel_coder.tasks.generator.repository.inputs import InputWriter

LOCALS = """
out out out result result res ret output y z h t o r C D E tmp temp val value norm total inner outer scaled mean rms
num denom prod acc act hid part first_half left_part res1 y1 h1 z1 h2 y2 product summed normalized reduced conv_out
"""
"""Names of variables in ``forward``."""

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


def reference(draft: Draft, side: int) -> str:
    """Return the reference's text with real constants (0) or small ones (1)."""
    return Writer(draft, Random(draft.text_seed)).text(side)


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
        self.is_old_super = choose() < 0.65
        self.is_nested = choose() < 0.35
        self.has_comments = choose() < 0.3
        self.constants_first = choose() < 0.12
        self.pulls = choose() < 0.2
        self.has_fresh_names = choose() < 0.12
        self.locals: set[str] = set()
        self.bulleted = choose() < 0.25
        opening = rng.choice(OPENINGS_ONE if len(draft.phrases) == 1 else OPENINGS_MANY)
        what = listed(draft.phrases)
        self.summary = opening.format(what)
        self.summary = self.summary[:1].upper() + self.summary[1:]
        self.returns = rng.choice(RETURNS)
        self.inputs = InputWriter(draft, rng)

    def text(self, side: int) -> str:
        """Return the reference with real sizes (0) or small ones (1)."""
        head = "import torch\nimport torch.nn as nn\n"
        body = self._class()
        if re.search(r"\bF\.", body):
            head += "import torch.nn.functional as F\n"
        if "math." in body:
            head += "import math\n"
        constants = self.inputs.constants(side)
        helpers = self.inputs.functions(side)
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
        names = [
            f"{each.name}: {'torch.Tensor' if each.dims else 'float'}" if self.is_typed else each.name
            for each in draft.inputs
        ]
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
            return self._only(steps[0].format(x=first))
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
        name = first if len(draft.inputs) == 1 or self.rng.random() < 0.7 else self._local()
        lines, value = [], first
        for number, step in enumerate(steps):
            if step.startswith("="):  # keeps a value under another name
                lines.append(f"{step[1:]} = {value}" if "{x}" not in step else step[1:].format(x=value))
                continue
            text = step.format(x=value)
            *earlier, last = text.split("\n")
            lines += earlier
            is_last = number == len(steps) - 1
            if is_last and self.rng.random() < 0.5:
                lines.append(f"return {last}")
                return lines
            name = f"{first}_{self._local()}" if self.has_fresh_names else name
            lines.append(f"{name} = {last}")
            value = name
        lines.append(f"return {value}")
        return lines

    def _only(self, text: str) -> list[str]:
        """Return the lines of a single expression: at once, or with parts of it under names of their own."""
        lines: list[str] = []
        if self.pulls:
            tree = ast.parse(text, mode="eval")
            parts = [
                node
                for node in ast.walk(tree.body)
                if node is not tree.body
                and (isinstance(node, ast.Call | ast.BinOp) or (isinstance(node, ast.Attribute) and node.attr in "mT"))
            ]
            if parts:
                part, name = self.rng.choice(parts), self._local()
                lines.append(f"{name} = {ast.unparse(part)}")
                text = ast.unparse(_Replaced(part, name).visit(tree))
        if self.rng.random() < 0.4:
            name = self.draft.inputs[0].name if self.rng.random() < 0.4 else self._local()
            lines.append(f"{name} = {text}")
            text = name
        return [*lines, f"return {text}"]

    def _local(self) -> str:
        """Return a variable of ``forward`` that nothing uses."""
        draft = self.draft
        names = [*(each.name for each in draft.inputs), *(each.name for each in draft.arguments)]
        words = " ".join((*draft.steps, *draft.constants, *names))
        taken = {*re.findall(r"\w+", words), *self.locals}
        name = self.rng.choice([word for word in LOCALS.split() if word not in taken])
        self.locals.add(name)
        return name


class _Replaced(ast.NodeTransformer):
    """Replaces one node by a name."""

    def __init__(self, node: ast.AST, name: str) -> None:
        self.node, self.name = node, name

    def visit(self, node: ast.AST) -> Any:
        return ast.Name(self.name, ast.Load()) if node is self.node else self.generic_visit(node)


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
