"""A task that is being written: operations are added to its two texts, PyTorch and Triton, at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

LINE = 100


@dataclass(slots=True)
class Kernel:
    """A Triton kernel: its arguments, and the parts of its body in order."""

    pointers: dict[str, str] = field(default_factory=dict)  # parameter -> what `forward` passes
    results: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    head: list[str] = field(default_factory=list)  # lines that compute the program's offsets
    loads: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    name: str = ""

    def pointer(self, name: str, passed: str) -> str:
        if f"{name}_ptr" in self.pointers:
            raise ValueError(f"the kernel has a pointer {name}_ptr already")
        self.pointers[f"{name}_ptr"] = passed
        return f"{name}_ptr"

    def scalar(self, name: str, passed: str | None = None) -> str:
        self.scalars[name] = name if passed is None else passed
        return name

    def block(self, name: str, passed: str) -> str:
        self.blocks[name] = passed
        return name

    def text(self) -> str:
        groups = [
            [*self.pointers, *self.results],
            list(self.scalars),
            [f"{name}: tl.constexpr" for name in self.blocks],
        ]
        flat = f"def {self.name}({', '.join(name for group in groups for name in group)}):"
        if len(flat) > LINE:
            rows = [f"    {', '.join(group)}," for group in groups if group]
            flat = "\n".join([f"def {self.name}(", *rows, "):"])
        return "\n".join(["@triton.jit", flat, *_indented([*self.head, *self.loads, *self.steps], 1)])

    def launch(self, grid: str) -> list[str]:
        passed = [*self.pointers.values(), *self.results.values(), *self.scalars.values()]
        constants = [f"{name}={value}" for name, value in self.blocks.items()]
        line = f"{self.name}[{grid}]({', '.join([*passed, *constants])})"
        if len(line) <= LINE - 8:
            return [line]
        rows = [f"    {', '.join(group)}," for group in (passed, constants) if group]
        return [f"{self.name}[{grid}](", *rows, ")"]


def _indented(lines: Iterable[str], depth: int) -> list[str]:
    return ["    " * depth + line if line else "" for line in lines]


class Sketch:
    """The texts and declarations that a family fills in.

    The reference's `forward` works on one running variable, `x`; :meth:`step` appends `x = <expression>`. Sizes are
    constants of the module, as in KernelBench; the solution contains none, and reads them from the tensors.
    """

    def __init__(self, rng: Random, level: int) -> None:
        self.rng = rng
        self.level = level
        self.ops: list[str] = []
        self.sizes: dict[str, int] = {}
        self.inputs: dict[str, str] = {}  # argument of forward -> how get_inputs makes it
        self.arguments: dict[str, str] = {}  # argument of __init__ -> what get_init_inputs gives
        self.state: list[str] = []  # lines of __init__ that both classes have: parameters and layers
        self.modules: list[str] = []  # lines of __init__ that only the reference has
        self.settings: list[str] = []  # numbers that __init__ keeps under their own name
        self.steps: list[str] = []  # the reference's forward
        self.kernels: list[Kernel] = []
        self.forward: list[str] = []  # the solution's forward
        self.result = "out"
        self.variable = "x"
        self.texts: tuple[str, str] | None = None  # reference and solution, of a family that writes them itself
        self.entry_point = "Model"
        self.more: dict[str, str] = {}  # metadata of the task beyond what every family has

    # Declarations -------------------------------------------------------------------------------------------------

    def size(self, name: str, value: int) -> str:
        self.sizes.setdefault(name, value)
        return name

    def tensor(self, name: str, shape: Sequence[str], make: str | None = None) -> str:
        """Add an argument of forward, a float tensor or the one that `make` describes, where `{shape}` is the shape."""
        make = make or ("torch.rand({shape})" if self.rng.random() < 0.2 else "torch.randn({shape})")
        self.inputs[name] = make.replace("{shape}", ", ".join(shape))
        return name

    def argument(self, name: str, value: str | None = None) -> str:
        self.arguments[name] = name if value is None else value
        return name

    def parameter(self, name: str, shape: Sequence[str]) -> str:
        """Add a learnt tensor; its sizes become arguments of `__init__`."""
        for size in shape:
            if not size.isdecimal():
                self.argument(size)
        self.state.append(f"self.{name} = nn.Parameter(torch.randn({', '.join(shape)}))")
        return f"self.{name}"

    def setting(self, name: str, value: str) -> str:
        """Add a number that is an argument of `__init__` and is kept as `self.<name>`."""
        self.argument(name, value)
        self.settings.append(name)
        return f"self.{name}"

    # The reference ------------------------------------------------------------------------------------------------

    def step(self, expression: str) -> None:
        *before, last = expression.split("\n")
        self.steps += [*before, f"{self.variable} = {last}"]

    def reference(self) -> str:
        if self.texts is not None:
            return self.texts[0]
        lines = list(self.steps)
        assigned = f"{self.variable} = "
        if lines[-1].startswith(assigned) and self.rng.random() < 0.5:
            lines[-1] = f"return {lines[-1].removeprefix(assigned)}"
        elif not lines[-1].startswith("return "):
            lines.append(f"return {self.variable}")
        functional = any("F." in line for line in [*self.state, *self.modules, *lines])
        mathematical = any("math." in line for line in lines)
        imports = ["import math\n"] * mathematical + ["import torch", "import torch.nn as nn"]
        imports += ["import torch.nn.functional as F"] * functional
        sizes = "\n".join(f"{name} = {value}" for name, value in self.sizes.items())
        inputs = ", ".join(self.inputs.values())
        if len(inputs) > LINE - 12:
            inputs = "".join(f"\n        {value}," for value in self.inputs.values()) + "\n    "
        parts = [
            "\n".join(imports),
            self._class("Model", [*self.state, *self.modules], self.settings, lines),
            sizes,
            f"def get_inputs():\n    return [{inputs}]",
            f"def get_init_inputs():\n    return [{', '.join(self.arguments.values())}]",
        ]
        return "\n\n\n".join(part for part in parts if part) + "\n"

    # The solution -------------------------------------------------------------------------------------------------

    def solution(self) -> str:
        if self.texts is not None:
            return self.texts[1]
        lines = [*self.forward, f"return {self.result}"]
        text = "\n".join(lines)
        used = [name for name in self.settings if f"self.{name}" in text]
        kernels: list[str] = []
        for kernel in self.kernels:
            if (source := kernel.text()) not in kernels:
                kernels.append(source)
        imports = ["import torch", "import torch.nn as nn", "import triton", "import triton.language as tl"]
        imports[2:2] = ["import torch.nn.functional as F"] * any("F." in line for line in self.forward)
        parts = ["\n".join(imports), *kernels, self._class("ModelNew", self.state, used, lines)]
        return "\n\n\n".join(parts) + "\n"

    def _class(self, name: str, state: Sequence[str], settings: Sequence[str], forward: Sequence[str]) -> str:
        lines = [f"class {name}(nn.Module):"]
        if self.arguments or state:
            lines += [f"    def __init__({', '.join(['self', *self.arguments])}):", "        super().__init__()"]
            lines += _indented([f"self.{setting} = {setting}" for setting in settings], 2)
            lines += [*_indented(state, 2), ""]
        lines += [f"    def forward({', '.join(['self', *self.inputs])}):", *_indented(forward, 2)]
        return "\n".join(lines)

    def contiguous(self, *names: str) -> None:
        self.forward += [f"{name} = {name}.contiguous()" for name in names or self.inputs]

    def name_kernel(self, kernel: Kernel, ops: Sequence[str] | None = None) -> None:
        """Name the kernel by its operations, as in `scale_softmax_kernel`; a longer composition by the first and last
        ones."""
        words = list(dict.fromkeys(self.ops if ops is None else ops))
        kernel.name = "_".join(words if len(words) <= 3 else ["fused", words[0], words[-1]]) + "_kernel"
