"""Writes what follows a module: its sizes, ``get_inputs`` and ``get_init_inputs``, in the ways in which people write
them."""

from __future__ import annotations

import re
from random import Random

from kernel_coder.tasks.generator.repository.draft import Argument, Draft, Input, Pair

HEADINGS = ("", "", "", "# Test code", "# Sizes", "# Configuration", "# Example inputs")
NOTES = ("", "", "", "  # no arguments", "  # nothing to configure")
SHAPE_NAMES = ("input_shape", "input_shape", "input_shape", "shape", "feature_shape", "dims", "sizes")
"""Names of a tuple of all sizes but the first."""

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b(?!=)")
"""A name that is neither an attribute nor a keyword of a call."""


class InputWriter:
    """Writes constants and input functions. Every choice is drawn at the start, so both sides get the same text."""

    def __init__(self, draft: Draft, rng: Random) -> None:
        self.draft = draft
        is_plain = rng.random() < 0.35  # one constant a line, in order, and no other peculiarities

        def choose() -> float:
            """A number between 0 and 1, which is 1 in plain modules: what is rare does not happen."""
            return max(rng.random(), float(is_plain))

        self.heading, self.note = rng.choice(HEADINGS), rng.choice(NOTES)
        self.in_variables = rng.random() < (0.75 if is_plain else 0.45) or any(each.after for each in draft.inputs)
        arguments = draft.arguments
        least = max([0, *(at + 1 for at, each in enumerate(arguments) if each.is_required or _is_given(each))])
        self.given = arguments[: rng.choice((least, least, rng.randint(least, len(arguments))))]
        self.values: dict[str, Pair] = {**{each.name: each.value for each in arguments}, **draft.constants}
        self.names = {each.name: each.name for each in arguments}  # of each argument's constant
        self._name(rng, others=choose() < 0.2)
        self.inlined: set[str] = set()  # names that are written as numbers
        style = choose()
        if style < 0.1:
            self.inlined = set(self.values)
        elif style < 0.22:
            self.inlined = {name for name in sorted(self.values) if choose() < 0.4}
        elif style < 0.36:
            self.inlined = {each.name for each in arguments if each.name not in draft.constants}
        self.factor = rng.choice((2, 2, 2, 4, 8)) if choose() < 0.2 else 0
        self.in_front = choose() < 0.5  # the factor
        self.tail: tuple[str, ...] = ()
        self.tail_name = rng.choice(SHAPE_NAMES)
        if rng.random() < 0.2:
            self._share_tail(rng)
        self.is_shuffled = choose() < 0.25
        self.is_chained, self.is_unpacked = choose() < 0.2, choose() < 0.12
        order = [*draft.constants, *(each.name for each in self.given if each.name not in draft.constants)]
        if self.is_shuffled:
            rng.shuffle(order)
        texts = {each.name for each in arguments if each.text}
        self.order = [name for name in order if name not in texts] + [name for name in order if name in texts]
        self.scale = rng.choice(("scale", "scale", "s0", "magnitude", "amp")) if choose() < 0.08 else ""
        if self.scale in self.values or any(each.name == self.scale for each in draft.inputs):
            self.scale = ""
        self.is_like = [choose() < 0.25 for _ in draft.inputs]
        self.is_twice = [choose() < 0.5 for _ in draft.inputs]
        self.in_tuple = choose() < 0.05

    def _name(self, rng: Random, others: bool) -> None:
        """Choose names for the arguments' constants: the argument's, that of an equal size, or, with `others`, another
        one."""
        constants = self.draft.constants
        shares = rng.random() < 0.6
        for each in self.draft.arguments:
            if each.name in constants or each.text:
                continue
            equal = [name for name, pair in constants.items() if pair == each.value and name not in self.names]
            if shares and equal and isinstance(each.value[0], int) and each.value[0] >= 8:
                self.names[each.name] = equal[0]
            elif others and rng.random() < 0.6:
                known = {"dim": "reduce_dim", "kernel_size": "k_size"}
                name = rng.choice((f"{each.name}_value", f"my_{each.name}", known.get(each.name, f"{each.name}0")))
                if name not in self.draft.taken and name not in self.names.values():
                    self.names[each.name] = name

    def _share_tail(self, rng: Random) -> None:
        """Give the sizes but the first a name together, as in ``torch.rand(batch_size, *input_shape)``."""
        first = self.draft.inputs[0].dims
        if len(first) > 1 and not self.inlined & set(first) and self.tail_name not in self.values:
            self.tail = first[1:]
            used = [each.text + each.name for each in self.draft.arguments] + [*self.names.values(), first[0]]
            for each in self.draft.inputs:
                used += [each.make, *(each.dims if each.dims[1:] != self.tail else each.dims[:1])]
            words = set(re.findall(r"\w+", " ".join(used)))
            if not words & set(self.tail) or rng.random() < 0.4:
                self.inlined |= {name for name in self.tail if name not in words}

    # ---- constants

    def constants(self, side: int) -> str:
        """Return the assignments of the sizes, and of the arguments that ``get_init_inputs`` names."""
        entries: list[tuple[str, str, Pair]] = []
        texts = {each.name: each.text for each in self.draft.arguments}
        for name in self.order:
            if name in self.inlined or self.names.get(name, name) in self.draft.constants.keys() - {name}:
                continue
            value = self.values[name]
            text = self._text(texts[name], side) if texts.get(name) else self._number(value, side)
            entries.append((self.names.get(name, name), text, value))
        lines: list[str] = []
        while entries:
            name, text, value = entries.pop(0)
            names = [name]
            if self.is_chained:
                while entries and entries[0][2] == value and entries[0][1] == text:
                    names.append(entries.pop(0)[0])
            if self.is_unpacked and len(names) == 1 and isinstance(value[0], int):
                group = [text]
                while entries and len(group) < 3 and isinstance(entries[0][2][0], int):
                    names.append(entries[0][0])
                    group.append(entries.pop(0)[1])
                lines.append(f"{', '.join(names)} = {', '.join(group)}")
            else:
                lines.append(f"{' = '.join(names)} = {text}")
        if self.tail:
            sizes = ", ".join(self._text(name, side) for name in self.tail)
            lines.append(f"{self.tail_name} = ({sizes}{',' if len(self.tail) == 1 else ''})")
        if self.heading and lines:
            lines.insert(0, self.heading)
        return "\n".join(lines) + "\n" if lines else ""

    def _number(self, value: Pair, side: int) -> str:
        """Return a constant's value, in some modules as a product."""
        factor, real = self.factor, value[0]
        if not factor or isinstance(real, bool) or not isinstance(real, int) or real % factor or real < 2 * factor:
            return repr(value[side])
        rest, other = divmod(value[side], factor)
        first, second = (value[side], 1) if other or not rest else (rest, factor)
        return f"{second} * {first}" if self.in_front else f"{first} * {second}"

    def _text(self, text: str, side: int) -> str:
        """Return an expression with the values of the names that have no constant."""
        return _NAME.sub(lambda word: repr(self.values[word[0]][side]) if word[0] in self.inlined else word[0], text)

    # ---- functions

    def functions(self, side: int) -> str:
        """Return ``get_inputs`` and ``get_init_inputs``."""
        lines = ["def get_inputs():"]
        made = [(each.name, self._made(at, each, side)) for at, each in enumerate(self.draft.inputs)]
        if self.scale and any(self.scale in text for _, text in made):
            lines.append(f"    {self.scale} = torch.rand(())")
        if self.in_variables:
            later: list[str] = []
            for at, (name, text) in enumerate(made):
                twice = re.fullmatch(r"torch\.(\w+)\((torch\..+\))\)", text)
                if twice and self.is_twice[at]:
                    text = twice[2]
                    later.append(f"    {name} = torch.{twice[1]}({name})")
                lines.append(f"    {name} = {text}")
                after = self.draft.inputs[at].after
                lines += [f"    {name} = {after.format(x=name)}"] if after else []
            lines += [*later, f"    return [{', '.join(name for name, _ in made)}]"]
        else:
            lines.append(f"    return [{', '.join(text for _, text in made)}]")
        given = ", ".join(self._given(each, side) for each in self.given)
        lines += ["", "def get_init_inputs():", f"    return [{given}]{'' if given else self.note}"]
        return "\n".join(lines) + "\n"

    def _given(self, argument: Argument, side: int) -> str:
        name = self.names[argument.name]
        if argument.name in self.inlined and name == argument.name:
            return self._text(argument.text, side) if argument.text else repr(argument.value[side])
        return self._text(name, side) if name in self.draft.constants else self._own(argument, name, side)

    def _own(self, argument: Argument, name: str, side: int) -> str:
        """Return an argument's own constant, or its value if it has none."""
        return repr(argument.value[side]) if argument.name in self.inlined else name

    def _made(self, at: int, each: Input, side: int) -> str:
        """Return the expression that makes an input."""
        first = self.draft.inputs[0]
        make = self._text(each.make, side)
        if at and self.in_variables and self.is_like[at] and each.dims == first.dims and not first.after:
            shape = f"{first.name}.shape"
            return re.sub(r"(?<=, )\(\{shape\},?\)|\{shape\}", shape, make)
        dims = [self._text(dim, side) for dim in each.dims]
        if self.tail and each.dims[1:] == self.tail:
            dims = [dims[0], f"*{self.tail_name}"]
        if self.scale and not at and make.startswith("torch.rand({shape})"):
            rest = make.removeprefix("torch.rand({shape})")
            product = f"torch.rand({{shape}}) * {self.scale}"
            make = f"({product}){rest}" if rest else product
        elif self.in_tuple and make == "torch.rand({shape})" and len(dims) > 1:
            make = "torch.rand(({shape}))"
        return make.format(shape=", ".join(dims))


def _is_given(argument: Argument) -> bool:
    return argument.value != (argument.default, argument.default)
