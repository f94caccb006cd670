"""PyTorch modules written for this project, the left-hand side of the packaged pairs.

Each is kept as text, because models get text and the text is hashed. A file is a family; `all_modules` lists every
module in a fixed order. The style is KernelBook's: a class, `get_inputs` and `get_init_inputs`.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from textwrap import indent

FAMILIES = (
    "elementwise",
    "activations",
    "broadcasting",
    "reductions",
    "softmax",
    "norms",
    "linear",
    "bmm",
    "pooling",
    "convolutions",
    "losses",
    "gather",
    "layout",
    "cumulative",
    "residual",
    "attention",
)


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """One module: its class as text, the expressions its inputs come from, and its keyword arguments."""

    body: str
    inputs: tuple[str, ...]
    init: str = ""

    @property
    def name(self) -> str:
        """The class that is the module: the last one that the text defines."""
        return [node.name for node in ast.parse(self.body).body if isinstance(node, ast.ClassDef)][-1]

    @property
    def python_code(self) -> str:
        """The complete file: imports, class, `get_inputs`, `get_init_inputs`.

        >>> twice = "class Twice(nn.Module):\\n    def forward(self, x):\\n        return x + x"
        >>> print(ModuleSource(twice, ("torch.rand(4)",)).python_code)
        import torch
        import torch.nn as nn
        <BLANKLINE>
        <BLANKLINE>
        class Twice(nn.Module):
            def forward(self, x):
                return x + x
        <BLANKLINE>
        <BLANKLINE>
        def get_inputs():
            return [torch.rand(4)]
        <BLANKLINE>
        <BLANKLINE>
        def get_init_inputs():
            return [[], {}]
        <BLANKLINE>
        """
        imports = ["import torch", "import torch.nn as nn"]
        if "F." in self.body:
            imports.append("import torch.nn.functional as F")
        if "math." in self.body:
            imports.insert(0, "import math\n")
        inputs = ", ".join(self.inputs)
        if len(inputs) > 90:
            inputs = "\n" + indent(",\n".join(self.inputs), " " * 8) + ",\n    "
        keywords = ", ".join(f"{k.arg!r}: {ast.unparse(k.value)}" for k in _keywords(self.init))
        parts = (
            "\n".join(imports),
            self.body.strip("\n"),
            f"def get_inputs():\n    return [{inputs}]",
            f"def get_init_inputs():\n    return [[], {{{keywords}}}]",
        )
        return "\n\n\n".join(parts) + "\n"


def _keywords(init: str) -> list[ast.keyword]:
    call = ast.parse(f"f({init})", mode="eval").body
    assert isinstance(call, ast.Call)
    return call.keywords


def all_modules() -> list[tuple[str, ModuleSource]]:
    """Return every module with its family, in the order of `FAMILIES` and of the file."""
    return [
        (family, module) for family in FAMILIES for module in importlib.import_module(f"{__name__}.{family}").MODULES
    ]
