"""Rewrites Inductor's output in readable form: plain Triton kernels and a module that launches them.

``rewrite`` removes decorators with heuristics, numel constants, device guards, layout assertions and benchmark code. It
replaces torch's Triton helpers by plain ``tl``, inlines values that are used once, and turns ``call(args)`` into
``forward``. It supports straight-line kernels on one or two grid axes (``plain_kernel``); anything else raises
``Unsupported``. ``verify`` must check every result.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from textwrap import indent
from typing import TYPE_CHECKING

from kernel_coder.tasks.plain_kernel import HELPERS, PlainKernel, Unsupported, name_of, with_dependencies

if TYPE_CHECKING:
    from kernel_coder.tasks.inductor import Lowered


@dataclass(frozen=True, slots=True)
class Kernel:
    """The information that compiling a kernel needs: its argument types in order, and its block sizes."""

    name: str
    signature: Mapping[str, str]
    constants: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Readable:
    """The rewritten module and its kernels."""

    code: str
    kernels: tuple[Kernel, ...]


def rewrite(python_code: str, name: str, lowered: Lowered) -> Readable:
    """Return the readable form of ``lowered``: a file whose class ``<name>New`` replaces ``name``."""
    tree = ast.parse(lowered.code)
    sources = {
        node.targets[0].id: _constant_str(node.value.args[1])
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "async_compile.triton"
    }
    call = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "call")
    kernels = {old: PlainKernel(source) for old, source in sources.items()}
    if not kernels:
        raise Unsupported("no Triton kernel: library calls only")
    distinct = {kernel.body: old for old, kernel in reversed(kernels.items())}
    names = _kernel_names([old for old, kernel in kernels.items() if distinct[kernel.body] == old])
    for kernel in kernels.values():
        kernel.name = names[distinct[kernel.body]]
    forward = _Forward(lowered, kernels).lines(call)

    needed: list[str] = []
    for kernel in kernels.values():
        needed += [helper for helper in kernel.helpers if helper not in needed]
    parts = [
        "",
        *(HELPERS[helper] for helper in HELPERS if helper in with_dependencies(needed)),
        *(kernels[old].text for old in names),
        _new_class(python_code, name, forward),
    ]
    parts[0] = _imports(python_code, "\n".join(parts))
    specs = tuple(Kernel(kernels[old].name, kernels[old].signature, kernels[old].blocks) for old in names)
    return Readable("\n\n\n".join(part.strip("\n") for part in parts) + "\n", specs)


def _constant_str(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, str)
    return node.value


def _kernel_names(old: list[str]) -> dict[str, str]:
    """Return readable names, such as ``add_mul_kernel`` for ``triton_poi_fused_add_mul_0``; equal names get numbers."""
    stems = {}
    for name in old:
        stem = re.sub(r"^triton_\w+?_fused_?|_?\d+$", "", name).replace("prepare_softmax_online", "softmax")
        words = [word for word in stem.split("_") if word and word not in _SHAPE_ONLY]
        stems[name] = "_".join(words[:5]) or "copy"
    total, seen = Counter(stems.values()), Counter[str]()
    result = {}
    for name, stem in stems.items():
        result[name] = f"{stem}_kernel" if total[stem] == 1 else f"{stem}_kernel_{seen[stem]}"
        seen[stem] += 1
    return result


_SHAPE_ONLY = frozenset(
    ("view", "unsqueeze", "squeeze", "iota", "permute", "clone", "expand", "slice", "unsafe", "transpose", "select")
)


@dataclass(slots=True)
class _Buffer:
    """A tensor in ``forward``: its expression, and its layout if that is known."""

    text: str
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    base: str | None = None  # the tensor under a view, which is passed to kernels

    @property
    def pointer(self) -> str:
        return self.base or self.text


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _swapped(values: tuple[int, ...]) -> tuple[int, ...]:
    return (*values[:-2], values[-1], values[-2])


class _Forward:
    """Translates ``call(args)`` into the lines of ``forward``."""

    def __init__(self, lowered: Lowered, kernels: Mapping[str, PlainKernel]) -> None:
        self.lowered = lowered
        self.kernels = kernels
        self.buffers: dict[str, _Buffer] = {}
        self.inputs = [a for a in lowered.arguments if a.is_input]
        self.out: list[str] = []
        self.allocated: dict[str, int] = {}  # the line that allocates each buffer that is not used yet

    def lines(self, call: ast.FunctionDef) -> list[str]:
        names = [a.expression for a in self.inputs]
        if names:
            self.out.append(f"{', '.join(names)} = {', '.join(f'{n}.contiguous()' for n in names)}")
        self._block(call.body)
        return [line for line in self.out if line]

    def _block(self, body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.With():
                    self._block(node.body)
                case ast.Delete():
                    pass
                case ast.Expr(value=ast.Call() as call):
                    self._effect(call)
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value)
                case ast.Return(value=ast.Tuple(elts=elements)):
                    returned = [self._tensor(e).text for e in elements]
                    single = len(returned) == 1 and not self.lowered.returns_tuple
                    self.out.append(f"return {returned[0]}" if single else f"return ({', '.join(returned)})")
                case _:
                    raise Unsupported(f"a call with {ast.unparse(node).splitlines()[0]}")

    def _effect(self, call: ast.Call) -> None:
        called = name_of(call.func)
        if called in ("args.clear", "assert_size_stride", "assert_alignment", "torch.cuda.set_device"):
            return
        if called.endswith(".run") and called.removesuffix(".run") in self.kernels:
            kernel = self.kernels[called.removesuffix(".run")]
            self.out.append(kernel.launch([self._argument(argument) for argument in call.args]))
            return
        if called.startswith("extern_kernels."):
            self._library(called.removeprefix("extern_kernels."), call)
            return
        raise Unsupported(f"a call of {called}")

    def _argument(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        buffer = self._tensor(node)
        self.allocated.pop(buffer.pointer, None)
        return buffer.pointer

    def _library(self, function: str, call: ast.Call) -> None:
        keywords = {k.arg: k.value for k in call.keywords}
        out = keywords.pop("out")
        arguments = [self._tensor(a).text for a in call.args]
        for scalar in ("alpha", "beta"):
            value = keywords.pop(scalar, None)
            if value is not None and ast.literal_eval(value) != 1:
                arguments.append(f"{scalar}={ast.unparse(value)}")
        if keywords or function not in ("mm", "bmm", "addmm", "baddbmm"):
            raise Unsupported(f"extern_kernels.{function}({', '.join(map(str, keywords))})")
        buffer = self._tensor(out)
        assert buffer.shape is not None
        assert buffer.stride is not None
        if isinstance(out, ast.Name) and buffer.base is None and _contiguous(buffer.shape, buffer.stride):
            if buffer.text in self.allocated:
                self.out[self.allocated.pop(buffer.text)] = ""
            self.out.append(f"{buffer.text} = torch.{function}({', '.join(arguments)})")
        else:
            self.out.append(f"torch.{function}({', '.join([*arguments, f'out={buffer.text}'])})")

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(value, ast.Name) and value.id == "args":
            assert isinstance(target, ast.Tuple)
            for element, argument in zip(target.elts, self.lowered.arguments, strict=True):
                self.buffers[ast.unparse(element)] = _Buffer(argument.expression, argument.shape, argument.stride)
            return
        name = ast.unparse(target)
        called = name_of(value.func) if isinstance(value, ast.Call) else ""
        if called == "get_raw_stream":
            return
        if called == "empty_strided_cuda":
            assert isinstance(value, ast.Call)
            shape, stride = (ast.literal_eval(a) for a in value.args[:2])
            dtype = ast.unparse(value.args[2])
            device = f"{self.inputs[0].expression}.device"
            make = "torch.empty" if _contiguous(shape, stride) else "torch.empty_strided"
            layout = f"{shape}" if _contiguous(shape, stride) else f"{shape}, {stride}"
            self.allocated[name] = len(self.out)
            self.out.append(f"{name} = {make}({layout}, device={device}, dtype={dtype})")
            self.buffers[name] = _Buffer(name, shape, stride)
        elif called == "extern_kernels.convolution":
            assert isinstance(value, ast.Call)
            self.out.append(f"{name} = {self._convolution(value)}")
            self.buffers[name] = _Buffer(name)
        elif called == "reinterpret_tensor" or isinstance(value, ast.Name):
            self.buffers[name] = self._tensor(value)
        else:
            raise Unsupported(f"a call with {ast.unparse(value)[:60]}")

    def _convolution(self, call: ast.Call) -> str:
        options = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords if k.arg != "bias"}
        bias = next(k.value for k in call.keywords if k.arg == "bias")
        arguments = [self._tensor(a).text for a in call.args]
        if not (isinstance(bias, ast.Constant) and bias.value is None):
            arguments.append(self._tensor(bias).text)
        rank = len(options["stride"])
        function = f"F.conv_transpose{rank}d" if options["transposed"] else f"F.conv{rank}d"
        plain: dict[str, object] = {"stride": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank, "groups": 1}
        plain["output_padding"] = (0,) * rank
        options.pop("transposed")
        named = [f"{key}={value}" for key, value in options.items() if value != plain[key]]
        return f"{function}({', '.join([*arguments, *named])})"

    def _tensor(self, node: ast.expr) -> _Buffer:
        if isinstance(node, ast.Name):
            if node.id not in self.buffers:
                raise Unsupported(f"a tensor {node.id} that is no argument and no buffer")
            return self.buffers[node.id]
        if isinstance(node, ast.Call) and name_of(node.func) == "reinterpret_tensor":
            inner = self._tensor(node.args[0])
            shape, stride, offset = (ast.literal_eval(a) for a in node.args[1:])
            return self._view(inner, shape, stride, offset)
        raise Unsupported(f"an argument {ast.unparse(node)[:60]}")

    @staticmethod
    def _view(inner: _Buffer, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> _Buffer:
        base = inner.pointer
        if offset:  # as_strided counts from the start of the storage, which only a new buffer is sure to begin at
            if not base.startswith("buf"):
                raise Unsupported("a view into the middle of an argument")
            return _Buffer(f"{base}.as_strided({shape}, {stride}, {offset})", shape, stride)
        known = inner.shape is not None and inner.stride is not None
        if known and (inner.shape, inner.stride) == (shape, stride):
            return inner
        flat = known and _contiguous(inner.shape or (), inner.stride or ()) and prod(inner.shape or ()) == prod(shape)
        if flat and _contiguous(shape, stride):
            text = f"{base}.view({', '.join(map(str, shape))})"
        elif flat and len(shape) > 1 and _contiguous(_swapped(shape), _swapped(stride)):
            view = f"{base}.view({', '.join(map(str, _swapped(shape)))})"
            viewed = base if inner.base is None and inner.shape == _swapped(shape) else view
            text = f"{viewed}.t()" if len(shape) == 2 else f"{viewed}.transpose(-1, -2)"
        else:
            text = f"{base}.as_strided({shape}, {stride})"
        return _Buffer(text, shape, stride, base)


def _imports(python_code: str, code: str) -> str:
    lines = [line for line in python_code.splitlines() if line == "import math" and "math." in code]
    lines += [""] * bool(lines) + ["import torch", "import torch.nn as nn"]
    lines += ["import torch.nn.functional as F"] * bool(re.search(r"\bF\.", code))
    return "\n".join([*lines, "import triton", "import triton.language as tl"])


def _new_class(python_code: str, name: str, forward: list[str]) -> str:
    """Return the class with its new name and the new ``forward``; everything before ``forward`` stays."""
    node = next(n for n in ast.parse(python_code).body if isinstance(n, ast.ClassDef) and n.name == name)
    method = node.body[-1]
    if not (isinstance(method, ast.FunctionDef) and method.name == "forward"):
        raise Unsupported("a class whose last method is not forward")
    begin = method.body[0].lineno - 1
    if begin < method.lineno:
        raise Unsupported("a forward on the line of its signature")
    lines = python_code.splitlines()
    signature = [
        line for line in lines[method.lineno - 1 : begin] if not line.lstrip().startswith("#") and line.strip()
    ]
    kept = "\n".join([*lines[node.lineno - 1 : method.lineno - 1], *signature])
    kept = kept.replace(f"class {name}(", f"class {name}New(", 1).replace(f"super({name}, self)", "super()")
    return kept + "\n" + indent("\n".join(forward), " " * 8)
