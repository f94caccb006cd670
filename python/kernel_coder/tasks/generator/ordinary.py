"""Modules in ordinary style: a program, written in one of many ways.

Other families write one operation a line, on ``x``. Here an expression may be nested or not, calls are ``torch.``,
``F.``, methods, operators or layers, numbers are literals, arguments with and without defaults or attributes, and names
are those that people choose. The solution has the same form for every spelling: inputs are ``x``, ``y`` and ``z`` by
their position, and each operation is a line.
"""

from __future__ import annotations

import ast
import keyword
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from kernel_coder.tasks.generator.layouts import Flat
from kernel_coder.tasks.generator.pointwise import NORMAL, UnsuitableError
from kernel_coder.tasks.generator.programs import (
    TEMPORARIES,
    Constant,
    Node,
    Value,
    composition,
    draw_program,
    expand,
    lower,
    parents,
)
from kernel_coder.tasks.generator.sketch import Sketch
from kernel_coder.tasks.generator.spellings import (
    CALLS,
    DEFAULTS,
    INPUT_GROUPS,
    LAYER_NAMES,
    LAYERS,
    LEARNT,
    LOCALS,
    ONE,
    SENTENCES,
    SETTINGS,
    WORDS,
)

INPUTS = ("x", "y", "z")
"""The inputs' names in a program and in its solution, by position."""

RESERVED = frozenset({*INPUTS, *TEMPORARIES, "index", "mask", "numel", "out", "n_cols", "self", "softplus", "diff"})
"""Names that a solution uses itself. No attribute of a module gets them."""

_VECTORS = ("torch.randn({})", "torch.ones({})", "torch.zeros({})")
_NUMBERS = ("torch.ones(1)", "torch.tensor({})", "torch.randn(1)")
CALL_STYLES = ("torch", "torch", "functional", "functional", "method", "operator", "layer", "layer", "any", "any")


@dataclass(frozen=True, slots=True)
class Program:
    """The computation of a module.

    Attributes:
        root: the result, an expression of leaves named as in :data:`INPUTS` and of parameters.
        inputs: the names of the inputs.
        parameters: the learnt leaves, by name, with their kind.
    """

    root: Node
    inputs: tuple[str, ...]
    parameters: Mapping[str, str]
    uniform: tuple[bool, ...]  # whether an input is drawn from [0, 1)

    @property
    def composition(self) -> tuple[str, ...]:
        return composition(self.root, self.parameters)


def ordinary(s: Sketch) -> None:
    """Generate a program on one to three tensors, in one of many spellings."""
    program = draw(s.rng, s.level)
    if sum(bool(node.args) for node in expand(program.root, Random(0), share=1.0).walk()) < 2:
        raise UnsuitableError("one operation alone is what KernelBench's first level asks")
    s.ops = list(program.composition)
    s.texts = spell(program, s.rng)


def draw(rng: Random, level: int) -> Program:
    """Return a program of `level` + 2 operations or one more.

    Raises:
        UnsuitableError: this draw gave no program; draw again.
    """
    count = rng.choice((1, 1, 1, 2, 2, 2, 3))
    inputs = INPUTS[:count]
    uniform = tuple(rng.random() < 0.15 for _ in inputs)
    leaves = [
        Value(Node(name=name), (0.0, 1.0) if low else NORMAL, is_input=True)
        for name, low in zip(inputs, uniform, strict=True)
    ]
    parameters: dict[str, str] = {}
    if count < 3 and rng.random() < 0.2:
        kind = rng.choice(tuple(LEARNT))
        name = rng.choice(LEARNT[kind])
        parameters[name] = kind
        leaves.insert(rng.randrange(len(leaves) + 1), Value(Node(name=name), NORMAL))
    order = list(leaves)
    if len(order) > 1 and rng.random() < 0.3:
        rng.shuffle(order)
    return Program(draw_program(rng, level, order), inputs, parameters, uniform)


def spell(program: Program, rng: Random) -> tuple[str, str]:
    """Return one spelling of the program, the module's text, and the text of the solution that belongs to it.

    Raises:
        UnsuitableError: the spelling needs more variables than a kernel has here; draw again.
    """
    writer = _Writer(program, rng)
    return writer.reference(), writer.solution()


@dataclass(slots=True)
class _Writer:
    program: Program
    rng: Random
    style: str = ""
    calls: str = ""
    names: dict[str, str] = field(default_factory=dict)  # of the program's leaves, in the reference
    arguments: list[tuple[str, str, str]] = field(default_factory=list)  # of __init__: name, default, what is given
    attributes: list[str] = field(default_factory=list)  # lines of __init__ that the solution has, too
    layers: list[str] = field(default_factory=list)  # lines that only the reference has
    settings: dict[str, str] = field(default_factory=dict)  # kernel argument -> what forward passes
    layered: dict[str, tuple[str, str]] = field(default_factory=dict)  # call of a new layer -> its line, its operand
    layer_calls: Counter[str] = field(default_factory=Counter)  # line of a layer -> how many calls it has
    lines: list[str] = field(default_factory=list)  # of forward
    statements: list[tuple[str, Node]] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        rng = self.rng
        self.style = rng.choice(("nested", "nested", "nested", "statements", "mixed", "mixed"))
        self.calls = rng.choice(CALL_STYLES)
        self._name_inputs()
        self._name_parameters()
        if all(node.op in LAYERS for node in self.program.root.walk() if node.args) and rng.random() < 0.5:
            self.style, self.calls = "nested", "layer"
        root = self._with_settings(expand(self.program.root, rng))
        self._forward(root)

    # Names and numbers ------------------------------------------------------------------------------------------------

    def _name_inputs(self) -> None:
        rng, inputs = self.rng, self.program.inputs
        if rng.random() < 0.3:
            names: Sequence[str] = []
            while len(set(names)) < len(inputs):
                names = [self._word() for _ in inputs]
        elif len(inputs) == 1:
            names = [rng.choice(ONE)]
        else:
            names = rng.choice([group for group in INPUT_GROUPS if len(group) >= len(inputs)])[: len(inputs)]
        self.names = dict(zip(inputs, names, strict=True))
        self.taken = {*names, "torch", "nn", "F", "self"}
        self._dimensions()
        if self.taken & {size for size, _ in self.dims}:  # an input may not hide the size that it is made with
            self.dims = [(str(value), value) for _, value in self.dims]

    def _name_parameters(self) -> None:
        for name, kind in self.program.parameters.items():
            self.names[name] = f"self.{name}"
            size = self.dims[-1][0] if kind == "row" else ""
            made = self.rng.choice(_VECTORS if size else _NUMBERS)
            if size:
                argument = size if size.isidentifier() else self.rng.choice(("features", "dim", "hidden_size", "n"))
                self.arguments.append((argument.lower(), "", size))
                made = made.format(argument.lower())
            else:
                made = made.format(self.rng.choice(("0.5", "1.0", "0.1", "2.0")))
            self.attributes.append(f"self.{name} = nn.Parameter({made})")

    def _word(self) -> str:
        rng = self.rng
        word = rng.choice(WORDS)
        if rng.random() < 0.3:
            word = f"{word}_{rng.choice(WORDS)}"
        elif rng.random() < 0.2:
            word = rng.choice((word[:3], word[:1], f"{word}s", f"{word[:1]}{rng.randrange(1, 4)}"))
        return "x" if keyword.iskeyword(word) else word

    def _with_settings(self, root: Node) -> Node:
        """Make some constants arguments or attributes of the module."""
        rng = self.rng
        share = rng.choice((0.0, 0.0, 0.4, 0.8))
        done: dict[int, Node] = {}

        def visit(node: Node) -> Node:
            if id(node) not in done:
                args = tuple(visit(arg) for arg in node.args)
                values = {
                    key: self._named(node, key, value) if rng.random() < share and len(self.settings) < 2 else value
                    for key, value in node.values.items()
                }
                done[id(node)] = Node(node.op, args, values) if args else node
            return done[id(node)]

        return visit(root)

    def _named(self, node: Node, key: str, constant: Constant) -> Constant:
        rng = self.rng
        negated = node.op == "scale" and rng.random() < (0.8 if constant.value < 0 else 0.05)
        value = -constant.value if negated else constant.value
        names = SETTINGS.get(node.op, SETTINGS[key])
        name = rng.choice(names) if rng.random() < 0.8 else self._word()
        used = {*self.settings, *self.program.parameters, *(each[0] for each in self.arguments)}
        if name in used or name in RESERVED:
            return constant
        number = self._number(value)
        kind = rng.choice(("default", "default", "given", "attribute"))
        if kind == "attribute":
            self.attributes.append(f"self.{name} = {number}")
        else:
            given = number
            if kind == "default" and rng.random() < 0.3:  # the tests of a module rarely give its default
                number = self._number(round(value * rng.choice((0.5, 2.0)), 4))
            self.arguments.append((name, number if kind == "default" else "", given))
            self.attributes.insert(0 if kind == "given" else len(self.attributes), f"self.{name} = {name}")
        self.settings[name] = f"self.{name}"
        return Constant(value, name, negated)

    def _number(self, value: float) -> str:
        if value == int(value) and abs(value) < 100 and self.rng.random() < 0.4:
            return str(int(value))
        return repr(value)

    # The expression ---------------------------------------------------------------------------------------------------

    def _forward(self, root: Node) -> None:
        uses = parents(root)
        share = {"nested": 0.0, "statements": 1.0, "mixed": 0.4}[self.style]
        reuse = self.rng.random() < 0.5
        left = Counter(arg.name for node in root.walk() for arg in node.args if arg.name)
        named: dict[int, Node] = {}  # value -> the variable that holds it, as a leaf
        spelt = self.names.copy()  # leaf -> its name in the reference

        def visit(node: Node, is_root: bool = False) -> tuple[str, Node, bool]:
            """Return the expression, its tree for the kernel, and whether it is a single name."""
            if node.name:
                return spelt[node.name], node, True
            if id(node) in named:
                return spelt[named[id(node)].name], named[id(node)], True
            operands = [visit(arg) for arg in node.args]
            if not operands[0][2] and all(call.count("{x}") > 1 for call in CALLS[node.op]):
                operands[0] = assign(node.args[0], *operands[0][:2])
            tree = Node(node.op, tuple(each for _, each, _ in operands), node.values)
            text = self._call(node, [text for text, _, _ in operands], operands[0][2])
            if is_root or not (uses[id(node)] > 1 or self.rng.random() < share):
                return text, tree, False
            return assign(node, text, tree)

        def assign(node: Node, text: str, tree: Node) -> tuple[str, Node, bool]:
            """Assign the value to a new variable."""
            variable = Node(name=f"v{len(self.statements)}")
            left.subtract(arg.name for each in tree.walk() for arg in each.args if arg.name)
            old = next((n.name for n in tree.walk() if n.name and not left[n.name] and "." not in spelt[n.name]), "")
            spelt[variable.name] = spelt[old] if reuse and old else self._fresh()
            left[variable.name] = uses[id(node)]
            named[id(node)] = variable
            self.lines.append(f"{spelt[variable.name]} = {self._clean(text)}")
            self.statements.append((variable.name, tree))
            return spelt[variable.name], variable, True

        text, tree, _ = visit(root, is_root=True)
        self.statements.append(("result", tree))
        if self.rng.random() < 0.8:
            self.lines.append(f"return {self._clean(text)}")
        else:
            name = self.rng.choice(("out", "result", "x", "y", "output", "res"))
            self.lines += [f"{name} = {self._clean(text)}", f"return {name}"]

    def _clean(self, text: str) -> str:
        """Return the expression without unnecessary brackets, in double quotes."""
        plain = ast.unparse(ast.parse(text, mode="eval")).replace("'", '"').replace("+ -", "- ").replace("- -", "+ ")
        return plain.replace(" ** ", "**") if self.rng.random() < 0.4 else plain

    def _fresh(self) -> str:
        free = [name for name in LOCALS if name not in self.taken]
        name = self.rng.choice(free) if free and self.rng.random() < 0.8 else self._word()
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _call(self, node: Node, operands: Sequence[str], is_name: bool) -> str:
        rng, texts = self.rng, {}
        for key, value in node.values.items():
            text = f"self.{value.name}" if value.name else self._number(value.value)
            texts[key] = f"-{text}" if value.negated else text
        layers, calls = LAYERS.get(node.op, ()), CALLS[node.op]
        if node.op in DEFAULTS and not node.values["a"].name and node.values["a"].value == DEFAULTS[node.op][0]:
            calls, layers = (*calls, DEFAULTS[node.op][1]), (*layers, DEFAULTS[node.op][2])
        if layers and rng.random() < {"layer": 0.9, "any": 0.25}.get(self.calls, 0.05):
            given = {argument for argument, _, _ in self.arguments}
            if rng.random() < 0.7:  # the layer takes the argument itself
                texts |= {k: v.name for k, v in node.values.items() if v.name in given and not v.negated}
            return self._layer(rng.choice(layers).format(**texts), node.op, operands[0])
        if not is_name:
            calls = tuple(call for call in calls if call.count("{x}") == 1)
        preferred = [call for call in calls if _call_style(call) == self.calls]
        call = rng.choice(preferred or calls)
        wrapped = [f"({text})" for text in operands]
        return call.format(**dict(zip("xy", wrapped, strict=False)), **texts)

    def _layer(self, made: str, op: str, operand: str) -> str:
        """Return the call of a layer, or of a sequence if the operand is a layer's result."""
        if operand in self.layered and self.rng.random() < 0.7:
            before, inner = self.layered[operand]
            self.layer_calls[before] -= 1
            if before in self.layers and not self.layer_calls[before]:
                self.layers.remove(before)
            old = before.split(" = ", 1)[1]
            parts = old.removeprefix("nn.Sequential(").removesuffix(")") if old.startswith("nn.Seq") else old
            made, op, operand = f"nn.Sequential({parts}, {made})", "layers", inner
        names = {line.split(" = ")[0] for line in (*self.layers, *self.attributes)}
        line = next((line for line in self.layers if line.endswith(f" = {made}")), "")
        if not line:
            name = self.rng.choice((op, *LAYER_NAMES))
            while f"self.{name}" in names:
                name += "_"
            line = f"self.{name} = {made}"
            self.layers.append(line)
            self.layered[f"{line.split(' = ')[0]}({operand})"] = line, operand
        self.layer_calls[line] += 1
        return f"{line.split(' = ')[0]}({operand})"

    # The texts --------------------------------------------------------------------------------------------------------

    dims: list[tuple[str, int]] = field(default_factory=list)  # text and value of every size
    shape_style: str = ""

    def _dimensions(self) -> None:
        rng = self.rng
        count = rng.choice((1, 2, 2, 2, 3, 3, 4))
        values = [rng.choice((64, 100, 256, 500, 777, 1000, 1023, 4096))]
        if count == 2:
            values = [rng.choice((1, 2, 4, 8, 5, 16)), rng.choice((8, 16, 32, 64, 77, 100, 128, 120))]
        elif count > 2:
            values = [rng.choice((1, 2, 3, 4)), *(rng.choice((3, 4, 5, 8, 10, 16, 7)) for _ in range(count - 2))]
            values.append(rng.choice((8, 16, 32, 20, 33, 12)))
        self.shape_style = rng.choice(("literal", "literal", "lower", "upper"))
        names = {
            1: ("length",),
            2: ("batch_size", rng.choice(("dim", "features", "hidden_size"))),
            3: ("batch_size", "seq_len", rng.choice(("dim", "features", "hidden_size"))),
            4: ("batch_size", "channels", "height", "width"),
        }[count]
        texts = [str(value) for value in values]
        if self.shape_style != "literal":
            texts = [name.upper() if self.shape_style == "upper" else name for name in names]
        self.dims = list(zip(texts, values, strict=True))

    def reference(self) -> str:
        rng = self.rng
        text = "\n".join([*self.lines, *self.layers])
        kept = [line for line in self.attributes if "nn.Parameter" in line or line.split(" = ")[0] in text]
        body = [*kept, *self.layers]
        annotated = rng.random() < 0.3
        lines = [f"class Model({rng.choice(('nn.Module', 'nn.Module', 'nn.Module', 'torch.nn.Module'))}):"]
        if rng.random() < 0.35:
            lines += [f'    """{self._sentence()}"""', ""]
        if body or rng.random() < 0.15:
            arguments = [self._argument(*each, annotated) for each in self._ordered()]
            returned = " -> None" * (annotated and rng.random() < 0.3)
            lines.append(f"    def __init__({', '.join(['self', *arguments])}){returned}:")
            lines.append(f"        super({'Model, self' * (rng.random() < 0.2)}).__init__()")
            lines += [f"        {line}" for line in body] + [""]
        inputs = [f"{self.names[name]}{': torch.Tensor' * annotated}" for name in self.program.inputs]
        lines.append(f"    def forward({', '.join(['self', *inputs])}){' -> torch.Tensor' * annotated}:")
        if rng.random() < 0.12:
            lines.append(f'        """{self._sentence()}"""')
        for line in self.lines:
            if rng.random() < 0.06:
                lines.append(f"        # {self._sentence().lower().rstrip('.')}")
            lines.append(f"        {line}")
        text = "\n".join(lines)
        return self._file(text)

    def _file(self, text: str) -> str:
        rng = self.rng
        imports = [
            "import torch",
            rng.choice(("import torch.nn as nn", "import torch.nn as nn", "from torch import nn")),
        ]
        if "F." in text:
            imports.append(rng.choice(("import torch.nn.functional as F", "from torch.nn import functional as F")))
        shape = ", ".join(size for size, _ in self.dims)
        made = [f"torch.{'rand' if low else 'randn'}({shape})" for low in self.program.uniform]
        sizes = "\n".join(f"{name} = {value}" for name, value in self.dims if name.isidentifier())
        if rng.random() < 0.2:
            names = [self.names[name] for name in self.program.inputs]
            inner = [f"    {name} = {value}" for name, value in zip(names, made, strict=True)]
            inputs = "\n".join([*inner, f"    return [{', '.join(names)}]"])
        else:
            inputs = f"    return [{', '.join(made)}]"
            if len(inputs) > 100:
                inputs = "    return [\n" + "".join(f"        {each},\n" for each in made) + "    ]"
        given = self._given()
        parts = [
            "\n".join(imports),
            *([sizes] if sizes and rng.random() < 0.2 else []),
            text,
            sizes,
            f"def get_inputs():\n{inputs}",
            f"def get_init_inputs():\n    return [{', '.join(given)}]",
        ]
        if parts[1] == sizes and sizes:
            parts[3] = ""
        return "\n\n\n".join(part for part in parts if part) + "\n"

    def _given(self) -> list[str]:
        """Return the values of get_init_inputs, up to the last one that differs from a default."""
        ordered = self._ordered()
        last = max((i for i, (_, default, value) in enumerate(ordered) if value != default), default=-1)
        if last == len(ordered) - 2 and self.rng.random() < 0.5:
            last += 1
        return [value for _, _, value in ordered[: last + 1]]

    def _ordered(self) -> list[tuple[str, str, str]]:
        """Return the arguments of __init__, those without a default first."""
        return sorted(self.arguments, key=lambda each: bool(each[1]))

    def _argument(self, name: str, default: str, given: str, annotated: bool) -> str:
        if not annotated:
            return f"{name}={default}" if default else name
        kind = "float" if "." in (default or given) else "int"
        return f"{name}: {kind}{f' = {default}' if default else ''}"

    def _sentence(self) -> str:
        rng = self.rng
        if rng.random() < 0.4:
            return rng.choice(SENTENCES)
        words = [rng.choice(WORDS) for _ in range(rng.randrange(2, 8))]
        return " ".join([words[0].capitalize(), *words[1:]]) + "." * (rng.random() < 0.8)

    def solution(self) -> str:
        program = self.program
        s = Sketch(self.rng, 0)
        s.inputs = dict.fromkeys(program.inputs, "")
        s.arguments = {f"{name}={default}" if default else name: "" for name, default, _ in self._ordered()}
        s.state = self.attributes
        layout = Flat(s)
        kernel = layout.kernel
        for name in program.inputs:
            kernel.loads.append(f"{name} = {layout.load(kernel.pointer(name, name), 'same')}")
        for name, kind in program.parameters.items():
            pointer = kernel.pointer(name, f"self.{name}")
            load = layout.load(pointer, "last") if kind == "row" else f"tl.load({pointer})"
            kernel.loads.append(f"{name} = {load}")
        for name, passed in self.settings.items():
            kernel.scalar(name, passed)
        *kernel.steps, result = lower(self.statements, program.inputs, tuple(program.parameters))
        layout.store(result)
        words = list(dict.fromkeys(program.composition))
        s.name_kernel(kernel, words)
        s.contiguous()
        layout.launch()
        return s.solution()


def _call_style(call: str) -> str:
    if "F." in call or "functional" in call:
        return "functional"
    if call.startswith("torch."):
        return "torch"
    return "method" if "}." in call else "operator"
