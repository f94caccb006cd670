"""Renames what a module's author is free to name: layers, arguments and sizes.

Authors choose any names, and state dicts must load, so an answer has to repeat them. A model that has seen each layer
under few names writes the usual name instead of the module's own.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Mapping
from random import Random

SIZE_WORDS = """
n m k p q r s dim size width height depth length count rows cols features channels hidden units groups heads
batch samples items tokens steps inner outer first second left right planes maps nodes slots bins fan_in fan_out window
span extent stride_size pad dil taps area frames time space c_in c_out h_in w_in d_in l_in ch num_ch feat_dim seq vocab
"""
INPUT_WORDS = """
x a b c u v t z inp inputs data tensor src feat values mat left right pred target predictions targets labels q k v query
key value anchor positive negative mask states signal image batch hidden tokens first second lhs rhs y logits other
"""
LAYER_WORDS = """
conv layer op module block net proj main inner core stage unit filt mixer branch head stem body fc linear gemm matmul
norm bn gn ln inorm act pool maxpool avgpool deconv transpose gamma beta scale shift param lin dense transform
kernel_op embed attn loss_fn reduce weight_param
"""
PREFIXES = ("", "", "", "", "my_", "main_", "input_", "the_", "base_", "_")
ENDINGS = "1 2 3 _1 _2 _a _b _layer _op _in _out 1d 2d 3d _size _val"
SUFFIXES = ("", "", "", "", *ENDINGS.split())

RENAMED_SHARE = {"layer": 0.75, "argument": 0.6, "input": 0.65}
"""Share of the modules in which names are replaced: those of layers, of ``__init__``'s arguments and the sizes, and of
``forward``'s arguments. :data:`USUAL` of all modules keep every name."""
USUAL = 0.3

_TAKEN = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "torch", "nn", "F", "math", "tl", "triton"}
)


def renamed(texts: tuple[str, str, str], rng: Random) -> tuple[str, str, str]:
    """Return a reference, its small twin and its solution with other names.

    >>> reference = "class Model:\\n    def forward(self, x):\\n        return self.conv(x) * size\\nsize = 3"
    >>> texts = renamed((reference, reference, reference), Random(7))
    >>> print(texts[0])
    class Model:
        def forward(self, b_in):
            return self.conv(b_in) * base_q
    base_q = 3
    """
    body = ast.parse(texts[0]).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    functions = {node.name: node for one in classes for node in one.body if isinstance(node, ast.FunctionDef)}
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    targets = [each for node in assigned for target in node.targets for each in ast.walk(target)]
    sizes = list(dict.fromkeys(each.id for each in targets if isinstance(each, ast.Name)))
    taken = {*_TAKEN, *(word for text in texts for word in re.findall(r"\w+", text))}
    kept: dict[str, str] = {}  # names that reference and solution share
    more: dict[str, str] = {}
    layers: dict[str, str] = {}
    share = RENAMED_SHARE if rng.random() >= USUAL else dict.fromkeys(RENAMED_SHARE, 0.0)
    if rng.random() < share["argument"]:
        kept = {name: _free(rng, SIZE_WORDS, taken) for name in _arguments(functions.get("__init__"))}
        more = {name: _free(rng, SIZE_WORDS, taken) for name in sizes if name not in kept}
    if rng.random() < share["input"]:
        for name in _arguments(functions.get("forward")):
            if name not in kept:
                kept[name] = _free(rng, INPUT_WORDS, taken)
    if rng.random() < share["layer"] and "__init__" in functions:
        for node in ast.walk(functions["__init__"]):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node):
                layers.setdefault(node.attr, _free(rng, LAYER_WORDS, taken))
    first, small = (_replaced(text, kept | more, layers) for text in texts[:2])
    return first, small, _replaced(texts[2], kept, layers)


def _arguments(function: ast.FunctionDef | None) -> list[str]:
    return [] if function is None else [each.arg for each in function.args.args[1:]]


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _free(rng: Random, words: str, taken: set[str]) -> str:
    """Return a name that no text uses, and note that it is taken. One in five is in capitals, but no layer's."""
    while True:
        stem = "_".join(rng.sample(words.split(), 2 if rng.random() < 0.2 else 1))
        name = rng.choice(PREFIXES) + stem + rng.choice(SUFFIXES)
        name = name.upper() if words != LAYER_WORDS and rng.random() < 0.2 else name
        if name not in taken and name.lower() not in taken:
            taken.add(name)
            return name


def _replaced(text: str, names: Mapping[str, str], layers: Mapping[str, str]) -> str:
    """Replace names in a module's class and in its statements, but not in kernels, and the words of docstrings that
    describe them."""
    places: list[tuple[int, int, str, str]] = []  # line, column, old, new
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef) and statement.decorator_list:  # a kernel has names of its own
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in names:
                places.append((node.lineno, node.col_offset, node.id, names[node.id]))
            elif isinstance(node, ast.arg) and node.arg in names:
                places.append((node.lineno, node.col_offset, node.arg, names[node.arg]))
            elif isinstance(node, ast.Attribute) and _is_self(node) and node.attr in layers:
                places.append((node.lineno, node.col_offset + len("self."), node.attr, layers[node.attr]))
    lines = text.split("\n")
    for line, column, old, new in sorted(places, reverse=True):
        before, after = lines[line - 1][:column], lines[line - 1][column:]
        assert after.startswith(old)
        lines[line - 1] = before + new + after[len(old) :]
    return "\n".join(_described(line, names) for line in lines)


_DESCRIPTION = re.compile(r"\s+\w+ \((?:int|float|bool|tuple|list|torch\.Tensor)\b")


def _described(line: str, names: Mapping[str, str]) -> str:
    """Replace names in a docstring's line about an argument: its own name, and those of the sizes of its shape."""
    if not _DESCRIPTION.match(line):
        return line
    head, bracket, rest = line.partition(" (")
    indent = head[: len(head) - len(head.lstrip())]
    rest = re.sub(r"(?<=of shape \().*?(?=\))", lambda shape: _words(shape[0], names), rest)
    return f"{indent}{names.get(head.strip(), head.strip())}{bracket}{rest}"


def _words(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), text)
