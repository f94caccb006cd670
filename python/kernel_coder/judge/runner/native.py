"""Native candidates: one C++ or CUDA file with a function ``forward``, without any Python.

``forward`` takes the reference's inputs, then its parameters and buffers in the order of ``named_parameters()`` and
``named_buffers()``. It returns the same as the reference. A binding to Python is added unless the file has one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernel_coder.judge.config import BUILDS
from kernel_coder.tasks.task import parse

FUNCTION = "forward"
"""Name of the function that computes the result."""

SUFFIXES = {"cuda": ".cu", "cpp": ".cpp"}
"""Suffix of the source file, by backend."""

BINDING = """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("forward", &forward); }
"""
"""Text that is added to a file that does not bind its function to Python."""

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b", re.MULTILINE)
_DEFINED = re.compile(rf"^[ \t]*[\w:]+[\w:<>,&* \t]*[\s&*>]{FUNCTION}[ \t]*\([^;]*\{{", re.MULTILINE)
_PYTHON = re.compile(r"^[ \t]*(import|from|def|async def)[ \t]", re.MULTILINE)


def is_native(source: str, backend: str) -> bool:
    """Return whether a candidate is a C++ or CUDA file and not a Python module.

    >>> text = '#include <torch/extension.h>\\ntorch::Tensor forward(torch::Tensor x) { return x + 1; }'
    >>> is_native(text, "cpp"), is_native(text, "triton"), is_native("import torch", "cpp")
    (True, False, False)
    >>> is_native("torch::Tensor forward(torch::Tensor x) { return x + 1; }", "cpp")
    True
    """
    if backend not in BUILDS or not isinstance(parse(source), str):
        return False
    if _INCLUDE.search(source) is not None:
        return True
    return _DEFINED.search(source) is not None and _PYTHON.search(source) is None


def problem_of(source: str) -> str | None:
    """Return what is wrong with a native candidate as far as the uncompiled text shows it; None if nothing is.

    >>> problem_of("#include <torch/extension.h>\\nint f();")
    'the file defines no function forward'
    """
    if re.search(rf"\b{FUNCTION}\s*\(", source) or f'"{FUNCTION}"' in source:
        return None
    return f"the file defines no function {FUNCTION}"


def native_model(source: str, backend: str, state: Mapping[str, Tensor], trained: Sequence[str]) -> type[nn.Module]:
    """Compile a native candidate in the current folder, and wrap it in a module.

    Args:
        source: the candidate's code.
        backend: ``cpp`` or ``cuda``.
        state: the reference's parameters and buffers by name, in the order in which ``forward`` takes them.
        trained: names of the parameters whose gradients are compared.

    Returns:
        A class ``ModelNew`` with a parameter for each of the latter names and a buffer for each other one, of the same
        shape and dtype.

    Raises:
        RuntimeError: the file does not compile.
        AttributeError: the file binds no function ``forward``.
    """
    from torch.utils import cpp_extension

    path = os.path.abspath(f"candidate{SUFFIXES[backend]}")
    with open(path, "w") as file:
        if "torch/extension.h" not in source:
            file.write("#include <torch/extension.h>\n#line 1\n")
        file.write(source)
        if "PYBIND11_MODULE" not in source:
            file.write(BINDING)
    extension = cpp_extension.load("candidate_native", [path], verbose=False)
    if not hasattr(extension, FUNCTION):
        raise AttributeError(f"the file binds no function {FUNCTION}")
    shapes = {name: (value.shape, value.dtype) for name, value in state.items()}

    class ModelNew(nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            for name, (shape, dtype) in shapes.items():
                *path, last = name.split(".")
                parent: nn.Module = self
                for part in path:
                    if part not in parent._modules:
                        parent.add_module(part, nn.Module())
                    parent = parent.get_submodule(part)
                value = torch.zeros(shape, dtype=dtype)
                if name in trained:
                    parent.register_parameter(last, nn.Parameter(value))
                else:
                    parent.register_buffer(last, value)

        def forward(self, *inputs: Any) -> Any:
            own = (self.get_parameter(name) if name in trained else self.get_buffer(name) for name in shapes)
            return getattr(extension, FUNCTION)(*inputs, *own)

    return ModelNew
